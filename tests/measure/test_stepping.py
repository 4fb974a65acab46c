"""Walks beside `generate` of transformers and beside a run over the whole text for every token."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import noisescope as ns
from cases import make, sharp
from letters import letters
from noisescope.core.errors import BadInputError
from noisescope.core.records import Injection
from noisescope.measure.batches import prepare
from noisescope.measure.given import given
from noisescope.measure.stepping import PROMPT, prompts_of, walk
from noisescope.measure.workload import Text, Workload
from noisescope.sweep.injecting import Injecting

PROMPTS = torch.randint(3, 128, (18, 7), generator=torch.Generator().manual_seed(2))


def whole(model: torch.nn.Module, prompts: torch.Tensor, steps: int) -> torch.Tensor:
    """Without keys and values: everything is run again for every token."""
    ids = prompts
    for _ in range(steps):
        with torch.no_grad():
            ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return ids[:, prompts.shape[1] :]


def test_a_walk_is_greedy_generation() -> None:
    model = sharp(2)
    seen = walk(model, PROMPTS, 9)
    assert torch.equal(seen.tokens, whole(model, PROMPTS, 9))
    made = model.generate(
        PROMPTS, attention_mask=torch.ones_like(PROMPTS), max_new_tokens=9, min_new_tokens=9, do_sample=False
    )
    # There the end of a text is not allowed before the end; here it is a token like any other.
    same = (seen.tokens != model.config.eos_token_id).all(1)
    assert same.any() and torch.equal(made[same, 7:], seen.tokens[same])
    assert not seen.broken.any()


def test_along_its_own_tokens_a_walk_is_itself_and_one_faulty_step_shows_from_there_on() -> None:
    model = sharp(2)
    healthy = walk(model, PROMPTS, 8)
    assert torch.equal(walk(model, PROMPTS, 8, along=healthy).tokens, healthy.tokens)
    dead = Injection.of(ns.fault("stuck_at_zero", 1.0, rate=1.0), layers=[0])
    seen = walk(model, PROMPTS, 8, along=healthy, during=lambda s: Injecting(model, dead) if s == 3 else nullcontext())
    differs = (seen.tokens != healthy.tokens).float().mean(0)
    assert (differs[:3] == 0).all() and differs[3] > 0.5
    # What is left is in keys and values: in a walk that keeps none, the next step is healthy.
    model.forward = without_cache(model)
    clean = walk(model, PROMPTS, 8)
    again = walk(model, PROMPTS, 8, along=clean, during=lambda s: Injecting(model, dead) if s == 3 else nullcontext())
    assert torch.equal(again.tokens[:, 4:], clean.tokens[:, 4:]) and not torch.equal(again.tokens, clean.tokens)


def without_cache(model: torch.nn.Module):
    forward = type(model).forward
    return lambda input_ids, attention_mask=None, position_ids=None: forward(
        model, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
    )


def test_a_step_without_finite_logits_is_counted() -> None:
    model = sharp(2)
    huge = Injection.of(ns.fault("bit_flip", 1.0, bit=30, rate=0.5), operators="rms_norm")
    seen = walk(model, PROMPTS, 4, during=lambda s: Injecting(model, huge) if s == 2 else nullcontext())
    assert not seen.broken[:, :2].any() and seen.broken[:, 2].all()


def test_prompts_are_the_beginnings_of_the_samples_in_their_order() -> None:
    texts = ["a much longer text than the other one, and more than the prompt takes of it", "b" * 40, "c" * 35]
    samples = prepare(Workload.of("w", [Text(text) for text in texts]), letters(), "nll")
    prompts = prompts_of(samples)
    assert prompts.shape == (3, PROMPT)
    assert letters().decode(prompts[1]) == "b" * PROMPT
    assert letters().decode(prompts[0]).startswith("a much longer")


def test_what_is_no_text_cannot_be_gone_on_with() -> None:
    model = make("llama")
    with pytest.raises(BadInputError, match="no texts"):
        prompts_of(given(model, [{"inputs_embeds": torch.zeros(2, 4, 32)}], "top1_agreement"))

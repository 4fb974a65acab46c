"""What a model is called with is checked before it is called, and a call that fails says with which batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import noisescope as ns
from cases import batch, make
from noisescope.core.errors import BadInputError, NeverFiredError
from noisescope.measure.inputs import called_with, checked_batches, module_of

IDS = batch()["input_ids"]
WRONG: list[tuple[Any, str]] = [
    (None, "seen NoneType, expected a list"),
    (IDS, "seen Tensor, expected a list"),
    ("text", "seen str, expected a list"),
    ({"input_ids": IDS}, "seen dict, expected a list"),
    ([], "no batches"),
    (["text"], "batch 1 is str"),
    ([IDS], "batch 1 is Tensor"),
    ([{"input_ids": IDS}, {"input_ids": IDS.tolist()}], "batch 2 is {'input_ids': 'list'}"),
    ([{"input_ids": IDS[:0]}], "batch 1 has no rows"),
    ([{"input_ids": IDS[:, :0]}], r"batch 1: input_ids \(2, 0\) hold no token"),
    ([{"input_ids": IDS.float()}], "batch 1: input_ids are torch.float32; expected whole numbers"),
    ([{"input_ids": IDS + 100}], "batch 1: token 180; expected 0 to 127"),
    ([{"input_ids": IDS - 100}], "batch 1: token -97; expected 0 to 127"),
    ([{"input_ids": IDS, "attention_mask": IDS[:, 1:]}], r"attention_mask \(2, 5\) for input_ids \(2, 6\)"),
]


@pytest.mark.parametrize(("batches", "named"), WRONG, ids=[named[:30] for _, named in WRONG])
def test_a_wrong_batch_is_named(batches: Any, named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        checked_batches(batches, make("llama"))


@pytest.mark.parametrize(("batches", "named"), WRONG[:8], ids=[named[:30] for _, named in WRONG[:8]])
def test_whoever_takes_batches_says_so(batches: Any, named: str) -> None:
    for call in (ns.screen, ns.diagnose):
        with pytest.raises(BadInputError, match=named):
            call(make("llama"), batches)


def test_batches_may_come_one_by_one_and_of_a_model_that_names_no_tokens() -> None:
    rows = ({"input_ids": row[None] + 1000} for row in IDS)
    assert len(checked_batches(rows, nn.Linear(2, 2))) == 2


def test_a_call_that_fails_says_with_what() -> None:
    long = {"input_ids": torch.ones(1, 100, dtype=torch.long)}
    for call in (lambda: ns.screen(make("gpt2"), [long]), lambda: ns.sites(make("gpt2"), long)):
        with pytest.raises(
            BadInputError, match=r"with batch 1, as model\(input_ids \(1, 100\)\): index out of range"
        ) as e:
            call()
        assert isinstance(e.value.__cause__, IndexError)


def test_errors_of_our_own_and_a_lack_of_memory_come_through() -> None:
    for problem in (NeverFiredError("never"), torch.OutOfMemoryError("full")):
        with pytest.raises(type(problem)), called_with(1, {}):
            raise problem


def test_what_is_no_module_or_has_no_values_is_no_model() -> None:
    with pytest.raises(BadInputError, match=r"model str: expected a torch\.nn\.Module"):
        module_of("demo")
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(BadInputError, match="Linear is on the meta device"):
        module_of(empty)
    # What accelerate brings when it is called is on that device in between.
    empty._hf_hook = object()
    assert module_of(empty) is empty

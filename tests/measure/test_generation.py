"""Greedy answers: those of transformers' own `generate`, whatever the padding, and judged by their last number."""

import itertools
import math

import pytest
import torch
from torch import nn

from cases import make
from letters import letters
from noisescope.measure.batches import PLAIN_ENDS, Settings, prepare
from noisescope.measure.generation import Generated, answered, generate, spoken, stop_tokens
from noisescope.measure.scoring import clean_run, evaluate, run
from noisescope.measure.workload import Question, Workload

QUESTIONS = Workload.of("asked", [Question(text, "4") for text in ("1?", "What is 2 + 2?", "the", "a b c d e f?")])
CAUSAL = ("llama", "qwen2", "qwen3", "gemma", "mixtral", "gpt2", "gpt_neox", "opt", "phi")
NEW = 12


class Chain(nn.Module):
    """A language model that says the tokens of a text one after the other behind ':', and counts what it is run on."""

    def __init__(self, text: str, *, start: str = ":", stop: int = 2) -> None:
        super().__init__()
        self.table = torch.zeros(128, 128)
        self.seen = 0
        said = [letters().encode(start)[0], *letters().encode(text), stop]
        assert len(set(said)) == len(said)
        for one, following in itertools.pairwise(said):
            self.table[one, following] = 9.0

    def forward(self, input_ids, attention_mask):
        self.seen += input_ids.numel()
        return self.table[input_ids]


class Plain(nn.Module):
    """A model that takes tokens and their mask alone, and so numbers its positions itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


def asked(workload=QUESTIONS, **settings):
    return prepare(workload, letters(opening=True), "accuracy", Settings(max_new_tokens=NEW, max_length=60, **settings))


def generated(model, prepared):
    """The new tokens of every sample."""
    found = {}
    with torch.no_grad():
        for batch in prepared.batches():
            found |= zip(batch.samples, generate(model, batch, prepared.settings, letters()).tokens, strict=True)
    return [found[sample] for sample in sorted(found)]


def by_transformers(model, prepared, stops=(2,)):
    """The same by the library, each prompt alone."""
    model.config.use_cache = True
    found = []
    for (row,) in prepared.rows:
        ids = torch.tensor([row.tokens])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW,
            eos_token_id=list(stops),
            pad_token_id=0,
        )
        new = out[0, ids.shape[1] :].tolist()
        found.append(tuple(itertools.takewhile(lambda token: token not in stops, new)))
    return found


def wide_awake(family: str, attention: str = "sdpa") -> nn.Module:
    """A small model with weights large enough to say different things."""
    model = make(family, attention)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=draw) * 0.3)
    return model


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("budget", [1, 512])
def test_answers_are_those_of_the_librarys_own_greedy_search(family, budget):
    model, prepared = wide_awake(family), asked(tokens_per_batch=budget)
    assert len(prepared.batches()) == (4 if budget == 1 else 1)
    answers = generated(model, prepared)
    assert answers == by_transformers(model, prepared)
    assert max(map(len, answers)) > NEW - 4
    assert len(set(answers)) > 1


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_stands_in_the_padding_before_a_prompt_changes_no_answer(attention):
    model, prepared = wide_awake("llama", attention), asked()
    (batch,) = prepared.batches()
    assert (batch.inputs["attention_mask"] == 0).any()
    before = run(model, prepared, batch)
    batch.inputs["input_ids"][batch.inputs["attention_mask"] == 0] = 77
    assert run(model, prepared, batch) == before


def test_an_answer_ends_before_its_stop_token_and_the_others_go_on():
    model, prepared = wide_awake("llama"), asked()
    free = generated(model, prepared)
    stop = free[1][4]
    model.generation_config.eos_token_id = [stop]
    answers = generated(model, prepared)
    assert answers == by_transformers(model, prepared, (stop, 2))
    assert len(answers[1]) <= 4
    assert {len(answer) for answer in answers} > {len(answers[1])}


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_model_that_numbers_its_own_positions_gets_no_padding_in_front(family):
    model, prepared = wide_awake(family), asked()
    assert len(set(prepared.batches()[0].lengths)) > 1
    assert generated(Plain(model), prepared) == generated(model, prepared)


def test_with_a_cache_only_the_newest_token_is_run():
    model, prepared = wide_awake("llama"), asked()
    sizes = []
    model.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(tuple(inputs[0].shape[:2])))
    model.model.layers[0].register_forward_hook(lambda _, inputs, out: sizes.append(inputs[0].shape[1]))
    generated(model, prepared)
    width = max(len(row.tokens) for (row,) in prepared.rows)
    assert sizes[::2] == [width, *[1] * (NEW - 1)]
    assert sizes[1::2] == [(4, 1)] * NEW


def test_an_answer_has_no_more_tokens_than_allowed_and_no_more_positions_than_there_are():
    model = wide_awake("gpt2")
    lengths = [len(row.tokens) for (row,) in asked().rows]
    short = Settings(max_new_tokens=50, max_length=max(lengths) + 3)
    answers = generated(model, prepare(QUESTIONS, letters(opening=True), "accuracy", short))
    assert [len(answer) for answer in answers] == [min(50, max(lengths) + 4 - length) for length in lengths]
    # Its very last position is used.
    assert len(answers[lengths.index(max(lengths))]) == 4


def test_the_last_number_of_the_answer_is_judged():
    # One that is right, one that is wrong, one that goes on to the next question and is judged before it.
    workload = Workload.of("sums", [Question("2 + 2", "#### 4"), Question("2 + 3", "5")])
    prepared = prepare(workload, letters(), "accuracy", Settings(max_new_tokens=40))
    assert evaluate(Chain("so-2,4"), prepared).values == (1.0, 0.0)
    assert clean_run(Chain(" 5."), prepared).scores.values == (0.0, 1.0)
    assert evaluate(Chain(" four"), prepared).values == (0.0, 0.0)


def test_only_as_much_is_run_as_is_needed():
    prepared = prepare(Workload.of("one", [Question("2 + 2", "4")]), letters(), "accuracy", Settings(max_new_tokens=40))
    model, length = Chain(" 4"), len(prepared.rows[0][0].tokens)
    assert evaluate(model, prepared).values == (1.0,)
    assert model.seen == length + (length + 1) + (length + 2)


def test_what_the_model_asks_itself_is_no_answer():
    tokenizer = letters()
    said = "It is 4.\nQuestion: And 2 + 3?\nAnswer: 5"
    assert spoken(tokenizer, tokenizer.encode(said), PLAIN_ENDS) == "It is 4."
    assert spoken(tokenizer, tokenizer.encode("In Question: 4"), PLAIN_ENDS) == "In Question: 4"
    assert spoken(tokenizer, [1, *tokenizer.encode("4"), 2], PLAIN_ENDS) == "4"
    assert spoken(tokenizer, tokenizer.encode("4. So 5; no"), (";", ". ")) == "4"
    assert spoken(tokenizer, tokenizer.encode("4. So"), ()) == "4. So"
    assert spoken(tokenizer, [], PLAIN_ENDS) == ""


def test_an_answer_that_has_ended_is_not_gone_on_with():
    asked_otherwise = Question("2 + 2 is what:", "4", ends=(", ", "@w"))
    prepared = prepare(Workload.of("one", [asked_otherwise]), letters(), "accuracy", Settings(max_new_tokens=40))
    assert letters().decode(list(prepared.rows[0][0].tokens)) == "2 + 2 is what:"
    model = Chain("4@wl7")
    assert evaluate(model, prepared).values == (1.0,)
    # Three tokens are said, the last two of which are the end: as many runs.
    length = len(prepared.rows[0][0].tokens)
    assert model.seen == length + (length + 1) + (length + 2)


def test_an_answer_with_a_broken_position_is_wrong():
    (batch,) = prepare(Workload.of("one", [Question("2?", "4")]), letters(), "accuracy").batches()
    four = tuple(letters().encode("4"))
    assert answered(letters(), batch, Generated((four,), (0,))) == [(1.0, 0)]
    assert answered(letters(), batch, Generated((four,), (2,))) == [(0.0, 2)]
    assert answered(letters(), batch, Generated(((),), (0,))) == [(0.0, 0)]


@pytest.mark.parametrize(("bad", "first"), [(math.nan, 9), (math.inf, 5)])
def test_broken_logits_are_counted_and_the_answer_is_repeatable(bad, first):
    prepared = prepare(Workload.of("one", [Question("2?", "4")]), letters(), "accuracy", Settings(max_new_tokens=8))
    model = Chain(" 4")
    four = letters().encode("4")[0]
    model.table[four, 5] = bad
    model.table[four, 9] = 20.0
    scores = evaluate(model, prepared)
    assert scores.values == (0.0,)
    assert scores.broken[0] >= 1
    assert evaluate(model, prepared) == scores
    (batch,) = prepared.batches()
    assert run(model, prepared, batch).tokens[0][2] == first


def test_after_an_answer_nothing_is_counted_while_the_others_go_on():
    class Hasty(Chain):
        def forward(self, input_ids, attention_mask, position_ids):
            logits = super().forward(input_ids, attention_mask)
            ended = (input_ids == 2).any(1)
            hasty = (input_ids == letters().encode("?")[0]).any(1) & (input_ids[:, -1] == letters().encode(":")[0])
            logits[hasty, -1, 2] = 20.0
            return logits.masked_fill(ended[:, None, None], math.nan)

    workload = Workload.of("two", [Question("2?", "4"), Question("2 + 2", "4")])
    prepared = prepare(workload, letters(), "accuracy", Settings(max_new_tokens=8))
    (batch,) = prepared.batches()
    seen = run(Hasty(" 4so"), prepared, batch)
    assert [letters().decode(list(tokens)) for tokens in seen.tokens] == ["", " 4so"]
    assert seen.broken == (0, 0)


def test_stop_tokens_are_those_of_the_model_and_its_tokenizer():
    model = make("llama")
    model.generation_config.eos_token_id = [7, 8]
    assert stop_tokens(model, letters()) == {2, 7, 8}
    assert stop_tokens(nn.Linear(1, 1), letters()) == {2}
    assert stop_tokens(make("opt"), None) == {2}
    assert stop_tokens(nn.Linear(1, 1), None) == frozenset()

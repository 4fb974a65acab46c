"""The demo workloads on the demo model: most of every kind is answered, and noise lowers that."""

from collections import defaultdict

import pytest

import noisescope as ns
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.scoring import clean_run, evaluate
from noisescope.measure.workload import demo_names, demo_workload

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def subject():
    return ns.load("demo")


def by_kind(subject, name, limit=None):
    """The share of right answers per kind, printed, and over all."""
    workload = demo_workload(name, limit=limit)
    prepared = prepare(workload, subject.tokenizer, "accuracy", Settings.of(subject.model))
    values = clean_run(subject.model, prepared).scores.values
    kinds = defaultdict(list)
    for item, value in zip(workload.items, values, strict=True):
        kinds[item.kind].append(value)
    for kind, of in sorted(kinds.items()):
        print(f"{name}: {kind:16} {sum(of):3.0f} of {len(of)}")
    return sum(values) / len(values), {kind: sum(of) / len(of) for kind, of in kinds.items()}


def test_most_of_the_first_choices_are_answered_and_noise_lowers_that(subject):
    overall, kinds = by_kind(subject, "choices", limit=60)
    assert 0.8 <= overall < 1.0
    assert len(kinds) >= 8
    workload = demo_workload("choices", limit=24)
    prepared = prepare(workload, subject.tokenizer, "accuracy", Settings.of(subject.model))
    clean = evaluate(subject.model, prepared).values
    with ns.inject(subject.model, ns.noise(scale=0.5), operators=["linear"]):
        assert sum(evaluate(subject.model, prepared).values) < sum(clean) - 4


@pytest.mark.slow
def test_most_of_every_kind_of_choice_is_answered(subject):
    overall, kinds = by_kind(subject, "choices")
    assert 0.8 <= overall < 1.0
    # By guessing, a quarter of most kinds would be right, half of the grammar and a fifth of the copies.
    assert all(share > 0.5 for share in kinds.values())
    assert sum(share >= 0.8 for share in kinds.values()) >= 8


@pytest.mark.slow
def test_most_of_every_kind_of_question_is_answered(subject):
    overall, kinds = by_kind(subject, "questions")
    assert 0.7 <= overall < 1.0
    assert len(kinds) == 4
    assert all(share > 0.5 for share in kinds.values())


def test_every_digit_is_a_token_of_its_own(subject):
    tokenizer = subject.tokenizer
    for name in demo_names():
        for item in demo_workload(name).items:
            text = " ".join(str(value) for value in vars(item).values())
            for token in tokenizer.tokenize(text):
                assert len(token) == 1 or not any(character.isdigit() for character in token)
    # As the model was trained: the space before a digit, and a line break before one, stand apart from it.
    assert tokenizer.tokenize("12 + 7\n\n1") == ["1", "2", "\u0120+", "\u0120", "7", "\u010a\u010a", "1"]


def test_every_demo_workload_fits_the_model_with_every_metric_that_its_shape_has(subject):
    for name in demo_names():
        workload = demo_workload(name)
        prepared = prepare(workload, subject.tokenizer, "nll", Settings.of(subject.model))
        longest = max(len(row.tokens) for rows in prepared.rows for row in rows)
        assert longest < 256
        assert sum(len(batch.samples) for batch in prepared.batches()) == len(workload)

"""Items laid out as tokens: what is shown and scored, padding, order, and the key that names all of it."""

from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest
import torch

from letters import CHAT, letters
from noisescope.core.errors import BadInputError
from noisescope.measure.batches import Settings, prepare
from noisescope.measure.workload import Choice, Completion, Question, Text, Workload

MANY = tuple(Text("abcdefghij"[: 2 + i * 7 % 9] + str(i)) for i in range(12))


def laid_out(item, metric="nll", *, tokenizer=None, **settings):
    prepared = prepare(Workload.of("some", [item]), tokenizer or letters(), metric, Settings(**settings))
    return prepared.rows[0]


def shown_and_scored(row, tokenizer=None):
    """The text of a row, and of each scored piece what its logits foretell."""
    decode = (tokenizer or letters()).decode
    return decode(list(row.tokens)), [decode(list(piece.targets)) for piece in row.pieces]


def test_the_completion_alone_is_scored_behind_its_prompt():
    (row,) = laid_out(Completion("ab", "cd"))
    assert shown_and_scored(row) == ("abc", ["cd"])
    assert row.pieces[0].start == 1


def test_all_of_a_text_is_scored_but_its_first_token():
    (row,) = laid_out(Text("abcd"))
    assert shown_and_scored(row) == ("abc", ["bcd"])
    (row,) = laid_out(Text("abcd"), tokenizer=letters(opening=True))
    assert shown_and_scored(row) == ("<s>abc", ["abcd"])


def test_a_question_is_followed_by_its_answer():
    (row,) = laid_out(Question("1?", "2"))
    assert shown_and_scored(row) == ("Question: 1?\nAnswer: ", [" 2"])
    assert row.answer == ""


def test_a_question_to_be_answered_shows_nothing_of_the_answer():
    (row,) = laid_out(Question("1?", "2"), "accuracy")
    assert shown_and_scored(row) == ("Question: 1?\nAnswer:", [])
    assert row.answer == "2"


def test_a_question_that_is_a_whole_prompt_is_shown_as_it_is():
    tokenizer = letters(opening=True, chat=CHAT)
    item = Question("Q: 1?\nA:", "2", ends=("Q:",))
    (row,) = laid_out(item, "accuracy", tokenizer=tokenizer)
    assert tokenizer.decode(list(row.tokens)) == "<s>Q: 1?\nA:"
    assert (row.answer, row.ends) == ("2", ("Q:",))
    (row,) = laid_out(item, "nll", tokenizer=tokenizer)
    assert shown_and_scored(row, tokenizer) == ("<s>Q: 1?\nA: ", [" 2"])


def test_a_choice_is_scored_as_the_answer_it_is():
    (row,) = laid_out(Choice("x", ("yy", "z"), 1))
    assert shown_and_scored(row) == ("x ", [" z"])


def scored_choices(item):
    """The stretch of every choice by what is scored of it."""
    pieces = [piece for row in laid_out(item, "accuracy") for piece in row.pieces]
    return {letters().decode(list(piece.targets)): piece.stretch for piece in pieces}


def test_every_choice_is_scored_behind_one_space():
    found = scored_choices(Choice("x", ("yy", "z z", " w"), 1))
    assert {text: (one.choice, one.size, one.right) for text, one in found.items()} == {
        " yy": (0, 2, False),
        " z z": (1, 3, True),
        " w": (2, 1, False),
    }
    assert set(scored_choices(Choice("x\n", ("yy", "z"), 0))) == {"yy", "z"}


def test_bytes_are_counted_not_letters():
    rows = laid_out(Choice("x", ("~~~~", "~\u20ac"), 0), "accuracy")
    assert sorted(piece.stretch.size for row in rows for piece in row.pieces) == [4, 4]


def test_a_choice_that_opens_another_runs_with_it():
    rows = laid_out(Choice("x", ("y", "yz", "yzz", "q", "ba"), 0), "accuracy")
    # Of "q" only the space before it is run, as of the others; the space before "ba" is one token with the b.
    assert [shown_and_scored(row) for row in rows] == [("x yz", [" yzz", " yz", " y", " q"]), ("x b", [" ba"])]


def test_a_prompt_that_melts_into_what_follows_is_scored_from_there_in_every_choice():
    # "t" and "he" make the one token "the", and "t" and "x" stay two.
    assert [shown_and_scored(laid_out(Completion("at", rest))[0]) for rest in ("he", "x")] == [
        ("a", ["the"]),
        ("at", ["x"]),
    ]
    assert set(scored_choices(Choice("1=", ("2", "\n3"), 0))) == {"= 2", "=\n3"}
    assert set(scored_choices(Choice("1=", ("\n2", "\n3"), 0))) == {"\n2", "\n3"}


def test_the_opening_comes_once_and_the_prompt_is_never_empty():
    tokenizer = letters(opening=True)
    for item in (Completion("ab", "cd"), Question("1?", "2"), Choice("x", ("y", "z"), 0), Text("abc")):
        (row,) = laid_out(item, tokenizer=tokenizer)
        assert row.tokens[0] == 1
        assert 1 not in row.tokens[1:]


def test_a_whole_item_is_read_with_what_the_tokenizer_puts_around_it():
    tokenizer = letters(opening=True)
    assert laid_out(Text("abc"), "embedding_shift", tokenizer=tokenizer)[0].tokens == tuple(tokenizer("abc").input_ids)
    (row,) = laid_out(Text("abcdef"), "embedding_shift", tokenizer=tokenizer, max_length=4)
    assert tokenizer.decode(list(row.tokens)) == "<s>abc"


def test_a_long_text_is_cut_and_any_other_long_item_is_refused_by_number():
    (row,) = laid_out(Text("abcdefghij"), max_length=4)
    assert shown_and_scored(row) == ("abcd", ["bcde"])
    (row,) = laid_out(Completion("abc", "de"), max_length=4)
    assert len(row.tokens) == 4
    workload = Workload.of("long", [Completion("a", "b"), Completion("abc", "def")])
    with pytest.raises(BadInputError, match="item 2 of long: 5 tokens; expected at most 4"):
        prepare(workload, letters(), "nll", Settings(max_length=4))


def test_an_item_of_one_token_has_nothing_to_score():
    with pytest.raises(BadInputError, match="item 1 of some: too short"):
        laid_out(Text("a"))
    assert laid_out(Text("a"), tokenizer=letters(opening=True))[0].tokens == (1,)


def test_a_model_without_a_tokenizer_is_refused():
    with pytest.raises(BadInputError, match="without a tokenizer"):
        prepare(Workload.of("some", MANY), None, "nll")


class TestChat:
    def test_a_question_speaks_the_template_without_a_second_opening(self):
        tokenizer = letters(opening=True, chat=CHAT)
        (row,) = laid_out(Question("1?", "2"), "accuracy", tokenizer=tokenizer)
        assert tokenizer.decode(list(row.tokens)) == "26 Jul 2024\nuser>1?\nassistant>"
        (row,) = laid_out(Question("1?", "2"), "nll", tokenizer=tokenizer)
        assert shown_and_scored(row, tokenizer)[1] == ["2"]

    def test_the_date_of_today_is_in_no_prompt(self):
        tokenizer = letters(chat=CHAT)
        today = tokenizer.apply_chat_template([{"role": "user", "content": "1?"}], tokenize=False)
        assert not today.startswith("26 Jul 2024")
        (row,) = laid_out(Question("1?", "2"), "accuracy", tokenizer=tokenizer)
        assert tokenizer.decode(list(row.tokens)).startswith("26 Jul 2024")

    @pytest.mark.parametrize("written", ["%d %b %Y", "%Y-%m-%d", "%A, %-d %B %y", "%x week %W", "no date"])
    def test_any_date_is_written_as_the_clock_would_on_that_day(self, written):
        inside = "{% macro say(f) %}{{ strftime_now(f) }}{% endmacro %}"
        tokenizer = letters(chat=inside + "{% if strftime_now is defined %}{{ say('" + written + "') }}{% endif %}")
        (row,) = laid_out(Question("1?", "2"), "accuracy", tokenizer=tokenizer)
        assert tokenizer.decode(list(row.tokens)) == datetime(2024, 7, 26).strftime(written)

    def test_it_can_be_left_out_and_only_questions_have_it(self):
        tokenizer = letters(chat=CHAT)
        (row,) = laid_out(Question("1?", "2"), "accuracy", tokenizer=tokenizer, chat=False)
        assert tokenizer.decode(list(row.tokens)) == "Question: 1?\nAnswer:"
        (row,) = laid_out(Completion("ab", "cd"), tokenizer=tokenizer)
        assert tokenizer.decode(list(row.tokens)) == "abc"

    def test_it_cannot_be_asked_of_a_tokenizer_without_one(self):
        with pytest.raises(BadInputError, match="no chat template"):
            laid_out(Question("1?", "2"), "accuracy", chat=True)


def all_rows(batches):
    """Every row of the batches without its padding: sample, tokens, and what is scored where."""
    found = []
    for batch in batches:
        for i, sample in enumerate(batch.samples):
            kept = batch.inputs["attention_mask"][i].bool()
            here = batch.rows == i
            scored = list(zip(batch.positions[here].tolist(), batch.targets[here].tolist(), strict=True))
            found.append((sample, batch.inputs["input_ids"][i][kept].tolist(), scored))
    return sorted(found)


@pytest.mark.parametrize("budget", [1, 9, 30, 512])
def test_every_row_is_in_one_batch_whatever_the_budget(budget):
    prepared = prepare(Workload.of("some", MANY), letters(), "nll", Settings(tokens_per_batch=budget))
    batches = prepared.batches()
    tokens = [letters().encode(item.text) for item in MANY]
    expected = [(i, t[:-1], list(enumerate(t[1:]))) for i, t in enumerate(tokens)]
    assert all_rows(batches) == expected
    for batch in batches:
        assert batch.inputs["input_ids"].numel() <= budget or len(batch.samples) == 1
        assert batch.lengths == tuple(batch.inputs["attention_mask"].sum(1).tolist())
        assert [batch.stretches[owner].sample for owner in batch.owner.tolist()] == [
            batch.samples[row] for row in batch.rows.tolist()
        ]


def test_rows_of_like_length_are_together():
    batches = prepare(Workload.of("some", MANY), letters(), "nll", Settings(tokens_per_batch=20)).batches()
    lengths = [length for batch in batches for length in batch.lengths]
    assert lengths == sorted(lengths)
    assert sum(batch.inputs["input_ids"].numel() for batch in batches) <= 1.3 * sum(lengths)


def test_padding_is_behind_what_is_scored_and_before_what_is_answered():
    right = prepare(Workload.of("some", MANY[:3]), letters(), "nll").batches()[0].inputs
    asked = [Question("1?", "2"), Question("12345?", "3")]
    left = prepare(Workload.of("some", asked), letters(), "accuracy").batches()[0].inputs
    for mask, steps in ((right["attention_mask"], 1), (left["attention_mask"], -1)):
        assert (mask.diff(dim=1) * steps <= 0).all()
        assert (mask == 0).any()
        assert mask.any(1).all()
    assert (right["input_ids"][right["attention_mask"] == 0] == 0).all()


@pytest.mark.parametrize("pad", [True, False])
def test_a_tokenizer_without_padding_pads_with_its_last_token(pad):
    inputs = prepare(Workload.of("some", MANY[:3]), letters(pad=pad), "nll").batches()[0].inputs
    assert set(inputs["input_ids"][inputs["attention_mask"] == 0].tolist()) == {0 if pad else 2}


def test_a_slice_holds_its_samples_alone_and_is_the_same_each_time():
    prepared = prepare(Workload.of("some", MANY), letters(), "nll", Settings(tokens_per_batch=20))
    assert all_rows(prepared.batches(3, 7)) == all_rows(prepared.batches())[3:7]
    once, again = prepared.batches(3, 7), prepared.batches(3, 7)
    assert all(torch.equal(a.inputs["input_ids"], b.inputs["input_ids"]) for a, b in zip(once, again, strict=True))
    with pytest.raises(BadInputError, match="items 3 to 13 of some: it has 12"):
        prepared.batches(3, 13)


def test_the_key_names_everything_that_can_change_a_value_and_nothing_else():
    workload = Workload.of("some", MANY)
    key = prepare(workload, letters(), "nll").key
    assert prepare(replace(workload, name="other", repeated=(3,)), letters(), "nll", Settings()).key == key
    others = [
        prepare(Workload.of("some", MANY[:-1]), letters(), "nll"),
        prepare(workload, letters(), "kl_to_clean"),
        prepare(workload, letters(opening=True), "nll"),
        prepare(workload, letters(), "nll", Settings(tokens_per_batch=511)),
        prepare(workload, letters(), "nll", Settings(max_length=1023)),
        prepare(workload, letters(), "nll", Settings(max_new_tokens=255)),
    ]
    assert len({key, *(prepared.key for prepared in others)}) == len(others) + 1


@pytest.mark.parametrize("name", ["tokens_per_batch", "max_length", "max_new_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_settings_are_counts(name, value):
    with pytest.raises(BadInputError, match=f"{name} .*expected a whole number >="):
        Settings(**{name: value})


def test_a_row_is_no_longer_than_the_model_has_positions():
    model = SimpleNamespace(config=SimpleNamespace(n_positions=64))
    assert Settings.of(model).max_length == 64
    assert Settings.of(model, max_length=32, chat=False) == Settings(max_length=32, chat=False)
    text = SimpleNamespace(max_position_embeddings=48)
    assert Settings.of(SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))).max_length == 48
    assert Settings.of(torch.nn.Linear(1, 1)) == Settings()

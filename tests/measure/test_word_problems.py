"""Generated problems: right answers, and nothing of the test in training."""

import re
from dataclasses import replace

import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure.word_problems import check_disjoint, guessed, held_out, problems, texts
from noisescope.measure.workload import Question, Workload, final_number


def numbers(item):
    """The pair that a problem asks for, read from its words."""
    first, second = map(int, re.findall(r"\d+", item.question))
    return first, second, "gets" in item.question


def test_every_answer_is_right():
    split = problems(2000, 200, 100, 30)
    for item in (*split.train.items, *split.test.items, *split.between.items):
        first, second, is_more = numbers(item)
        assert int(item.answer) == (first + second if is_more else first - second) >= 0
        assert final_number(item.answer) == int(item.answer)


def test_no_numbers_of_the_test_are_ever_learned_and_none_are_asked_twice():
    split = problems(5000, 300, 150, 30)
    pairs = {part: [numbers(item) for item in getattr(split, part).items] for part in ("train", "test", "between")}
    assert len(pairs["test"]) == 300 == len(set(pairs["test"])) and len(split.train) == 5000
    assert not set(pairs["train"]) & set(pairs["test"])
    assert not set(pairs["between"]) & {*pairs["train"], *pairs["test"]}
    assert len(set(split.train.items)) == 5000


def test_both_operations_and_all_sizes_are_in_the_test():
    asked = [numbers(item) for item in problems(100, 300, 100, 30).test.items]
    assert 0.5 < sum(is_more for *_, is_more in asked) / 300 < 0.8
    assert min(first for first, *_ in asked) < 5
    assert max(first for first, *_ in asked) > 26


def test_the_items_are_the_same_every_time():
    assert problems(300, 20, 10, 20) == problems(300, 20, 10, 20)
    assert texts(50, 20, 10) == texts(50, 20, 10)


def test_texts_are_disjoint_and_some_letters_are_likelier_than_others():
    split = texts(400, 100, 50)
    check_disjoint(split)
    pairs = [text.text[i : i + 3] for text in split.train.items for i in range(0, 37, 2)]
    followers = {pair[0]: {other for other in pairs if other[0] == pair[0]} for pair in pairs}
    assert all(len(found) == 3 for found in followers.values())


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadInputError, match="at most half"):
        problems(100, 40, 40, 7)
    with pytest.raises(BadInputError, match="no more that differ"):
        problems(100_000, 10, 10, 6)
    with pytest.raises(BadInputError, match="expected at least 60"):
        held_out(problems(50, 10, 10, 9).train, 20, 10)


def test_given_items_are_held_out():
    given = problems(200, 10, 10, 20).train
    split = held_out(given, 40, 20)
    assert [len(part) for part in (split.train, split.test, split.between)] == [140, 40, 20]
    assert {*split.train.items, *split.test.items, *split.between.items} == set(given.items)
    check_disjoint(split)


def test_an_item_that_is_learned_and_tested_is_found():
    split = problems(200, 20, 10, 20)
    planted = Workload.of("planted", (*split.train.items, split.test.items[3]))
    with pytest.raises(BadInputError, match="1 of 20 items"):
        check_disjoint(replace(split, train=planted))


def test_guessing_gets_the_share_of_the_commonest_answer():
    items = [Question(f"q{i}", answer) for i, answer in enumerate("1223")]
    assert guessed(Workload.of("w", items)) == 0.5
    assert guessed(texts(20, 10, 10).test) == 0.0

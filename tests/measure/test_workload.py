"""Items read from JSONL: every shape, every bad line by its number, and a hash that follows the items alone."""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure.workload import (
    LINE_LIMIT,
    Choice,
    Completion,
    Question,
    Text,
    Workload,
    demo_names,
    demo_workload,
    final_number,
    read_workload,
)

TEXTS = (Text("one"), Text("two"), Text("three"))


def written(folder: Path, *lines: object, name: str = "data.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


@pytest.mark.parametrize(
    ("line", "item"),
    [
        ({"question": "2 + 2?", "answer": "It is 4.\n#### 4"}, Question("2 + 2?", "It is 4.\n#### 4")),
        ({"question": "2 + 2?", "answer": 4, "kind": "sum"}, Question("2 + 2?", "4", "sum")),
        ({"question": "How small?", "answer": 1e-05}, Question("How small?", "0.00001")),
        ({"question": "How large?", "answer": 1e22}, Question("How large?", "10000000000000000000000")),
        ({"prompt": "a", "completion": " b", "id": 7}, Completion("a", " b")),
        ({"text": "whole\ntext", "kind": ["odd"]}, Text("whole\ntext")),
        ({"prompt": "a", "choices": ["x", "y"], "answer": 1}, Choice("a", ("x", "y"), 1)),
        ({"prompt": "a", "choices": ["x", "y"], "answer": "x"}, Choice("a", ("x", "y"), 0)),
        # A text among the choices comes before the number that it could be.
        ({"prompt": "1 +", "choices": ["2", "1"], "answer": "1"}, Choice("1 +", ("2", "1"), 1)),
    ],
)
def test_each_shape_is_read(tmp_path, line, item):
    workload = read_workload(written(tmp_path, line))
    assert workload.items == (item,)
    assert workload.shape == item.shape
    assert workload.name == "data"


HALF = '{"text": "\\ud800"}'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "one JSON object"),
        ("[1]", "a JSON list"),
        ('"text"', "a JSON str"),
        ("[" * 100_000, "one JSON object"),
        ({}, "the fields (none)"),
        ({"Text": "a"}, "the fields Text"),
        ({"prompt": "a"}, "the fields prompt"),
        ({"prompt": "a", "completion": "b", "answer": 0}, "the fields prompt, completion, answer"),
        ({"text": ""}, "text ''"),
        ({"text": " \n"}, "a text that is not empty"),
        ({"text": 5}, "text 5"),
        ({"text": None}, "text None"),
        (HALF, "surrogate"),
        ({"prompt": "a", "completion": ["b"]}, "completion ['b']"),
        ({"question": "a", "answer": "none at all"}, "a number in it"),
        ({"question": "a", "answer": True}, "answer True"),
        ('{"question": "a", "answer": NaN}', "a number in it"),
        ({"prompt": "a", "choices": ["b"], "answer": 0}, "two texts or more"),
        ({"prompt": "a", "choices": "bc", "answer": 0}, "two texts or more"),
        ({"prompt": "a", "choices": ["b", "b"], "answer": 0}, "all differ"),
        ({"prompt": "a", "choices": ["b", ""], "answer": 0}, "choices ''"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": 2}, "an index from 0 to 1"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": -1}, "an index from 0 to 1"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": True}, "an index from 0 to 1"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": "d"}, "one of the choices itself"),
        ({"prompt": "a", "completion": "b"}, "{prompt, completion}, but line 1 has {text}"),
        ({"text": "x" * LINE_LIMIT}, f"more than {LINE_LIMIT} bytes"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, named):
    file = written(tmp_path, {"text": "good"}, "", line, {"text": "never read"})
    with pytest.raises(BadInputError) as raised:
        read_workload(file)
    assert f"{file}, line 3: " in str(raised.value)
    assert named in str(raised.value)
    assert "expected" in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_byte_that_is_no_utf8_is_named_by_file_and_line(tmp_path):
    file = tmp_path / "latin.jsonl"
    file.write_bytes(b'{"text": "one"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(BadInputError, match=r"latin\.jsonl, line 2: byte 0xe9 at position 13; expected UTF-8"):
        read_workload(file)


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(BadInputError, match=r"expected a JSONL file with \{question, answer\} or"):
        read_workload(tmp_path / name)


def test_a_file_without_items_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="no items"):
        read_workload(written(tmp_path, "", "  "))


def test_a_limit_leaves_the_lines_behind_it_unread(tmp_path):
    file = written(tmp_path, {"text": "one"}, {"text": "one"}, {"text": "two"}, "broken")
    assert read_workload(file, limit=2).items == (Text("one"), Text("two"))
    with pytest.raises(BadInputError, match="line 4"):
        read_workload(file, limit=3)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
def test_a_limit_that_is_no_count_is_refused(tmp_path, limit):
    with pytest.raises(BadInputError, match="expected a number of items >= 1"):
        read_workload(written(tmp_path, {"text": "one"}), limit=limit)


def test_a_second_copy_of_an_item_is_left_out_and_told(tmp_path):
    file = written(tmp_path, {"text": "one"}, {"text": "two"}, {"text": "one", "id": 3}, {"text": "one", "kind": "k"})
    workload = read_workload(file)
    assert workload.items == (Text("one"), Text("two"), Text("one", "k"))
    assert workload.repeated == (3,)


def test_the_content_hash_follows_the_items_alone(tmp_path):
    plain = [json.dumps({"text": item.text}) for item in TEXTS]
    (tmp_path / "windows.jsonl").write_bytes("\r\n\r\n".join(plain).encode("utf-8-sig"))
    with_more = [{"id": i, "text": item.text, "kind": ""} for i, item in enumerate(TEXTS)]
    same = [
        read_workload(written(tmp_path, *plain)),
        read_workload(tmp_path / "windows.jsonl"),
        read_workload(written(tmp_path, *with_more, name="more.jsonl")),
        read_workload(written(tmp_path, *plain, plain[0], name="twice.jsonl")),
        Workload.of("made", TEXTS),
    ]
    assert len({workload.content_hash for workload in same}) == 1


def test_the_content_hash_sees_every_difference_of_the_items():
    others = [
        TEXTS[::-1],
        TEXTS[:2],
        (*TEXTS, Text("four")),
        (Text("One"), *TEXTS[1:]),
        (Text("one", "kind"), *TEXTS[1:]),
        (Completion("a", "bc"),),
        (Completion("ab", "c"),),
        (Question("ab", "3"),),
        (Choice("a", ("b", "c"), 0),),
        (Choice("a", ("b", "c"), 1),),
        (Choice("a", ("c", "b"), 0),),
    ]
    hashes = {Workload.of("x", items).content_hash for items in [TEXTS, *others]}
    assert len(hashes) == len(others) + 1


def test_a_workload_is_of_one_shape():
    with pytest.raises(BadInputError, match="completion and text items: expected one shape"):
        Workload.of("mixed", (Text("a"), Completion("a", "b")))
    with pytest.raises(BadInputError, match="of no items"):
        Workload.of("none", ())


def test_a_part_is_a_range_inside():
    workload = Workload.of("three", TEXTS)
    assert workload.part() == TEXTS
    assert workload.part(1) == TEXTS[1:]
    assert workload.part(0, 2) == TEXTS[:2]
    for start, stop in [(0, 4), (2, 2), (2, 1), (-1, 2), (3, None)]:
        with pytest.raises(BadInputError, match="three: it has 3; expected a range inside"):
            workload.part(start, stop)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("It is 42.", "42"),
        ("first 3, then 4 apples", "4"),
        ("1,234", "1234"),
        ("1,234,567.5 euros", "1234567.5"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("$1,000", "1000"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("minus \u22127", "-7"),
        ("a loss of -0.50", "-0.5"),
        ("10-3", "3"),
        ("x-3", "3"),
        ("(2)-3", "3"),
        ("5 - 3", "3"),
        ("probability .25", "0.25"),
        ("v1.2.3", "3"),
        ("007", "7"),
        ("so 1 + 1 = 2\n#### 2", "2"),
        ("#### 18 of 20", "18"),
        ("#### 5\nno, rather\n#### 6", "6"),
        ("7 apples ####", "7"),
        ("\u0663", "3"),
    ],
)
def test_the_final_number_of_a_text(text, number):
    assert final_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "####", "- , . $", "one hundred"])
def test_a_text_without_a_number_has_no_final_one(text):
    assert final_number(text) is None


def test_equal_numbers_are_equal_however_they_are_written():
    assert final_number("5") == final_number("5.00") == final_number("$5") == final_number("#### 5 euros, not 6")


def test_the_demo_workloads_hold_what_they_say():
    assert demo_names() == ("calibration", "choices", "questions", "texts")
    shapes = {name: (demo_workload(name).shape, len(demo_workload(name))) for name in demo_names()}
    assert shapes == {
        "calibration": ("text", 200),
        "choices": ("choice", 360),
        "questions": ("question", 56),
        "texts": ("text", 100),
    }
    assert not any(demo_workload(name).repeated for name in demo_names())
    assert not {item.text for item in demo_workload("texts").items} & {
        item.text for item in demo_workload("calibration").items
    }
    with pytest.raises(BadInputError, match="Did you mean 'choices'"):
        demo_workload("choice")


def test_the_first_items_hold_several_kinds_and_the_right_choice_stands_anywhere():
    items = demo_workload("choices", limit=50).items
    assert len({item.kind for item in items}) >= 8
    places = [item.answer for item in demo_workload("choices").items if len(item.choices) == 4]
    assert all(abs(places.count(place) / len(places) - 0.25) < 0.1 for place in range(4))


def test_the_demo_data_is_what_its_maker_writes(tmp_path):
    root = Path(__file__).parents[2]
    made = f"import runpy, pathlib; m = runpy.run_path({str(root / 'tools' / 'make_demo_data.py')!r}); "
    made += f"m['main'].__globals__['FOLDER'] = pathlib.Path({str(tmp_path)!r}); m['main']()"
    subprocess.run([sys.executable, "-c", made], check=True)
    data = root / "src" / "noisescope" / "measure" / "demo_data"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["choices.jsonl", "questions.jsonl"]
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (data / file.name).read_bytes()


def test_workloads_are_read_without_torch():
    code = "import sys, noisescope.measure.workload as w; w.demo_workload(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

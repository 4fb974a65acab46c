import os
import re
from pathlib import Path

import pytest

from noisescope.core.foreign import clean
from noisescope.report.markdown import escape, to_markdown
from noisescope.report.summary import to_text
from report import example, hostile
from report.reading import plain, tables_of_markdown

VIEW = example.view()
GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize(("name", "render"), [("report.md", to_markdown), ("report.txt", to_text)])
def test_the_example_is_written_as_before(name, render):
    """Set NOISESCOPE_GOLDEN=write to write the files anew, and read what changed."""
    path, seen = GOLDEN / name, render(VIEW)
    if os.environ.get("NOISESCOPE_GOLDEN") == "write":
        path.write_text(seen, "utf-8")
    assert seen == path.read_text("utf-8")


@pytest.mark.parametrize("attack", hostile.ATTACKS, ids=range(len(hostile.ATTACKS)))
def test_foreign_text_reads_as_itself_and_as_nothing_else(attack):
    text = escape(clean(attack))
    assert plain(text) == clean(attack)
    assert not re.search(r"(?<![\\&])[|`*_\[\]#~$]|<|>|&(?!amp;|lt;|gt;|#\d+;)", text)
    assert "://" not in text and "www." not in text and "@" not in text
    assert not re.match(r"\s*([-+>]|\d+\.)\s", text)


def test_tables_keep_their_columns_whatever_stands_in_them():
    clean, poisoned = (tables_of_markdown(to_markdown(view)) for view in (VIEW, hostile.poisoned(VIEW)))
    assert [[len(row) for row in rows] for _, rows in clean] == [[len(row) for row in rows] for _, rows in poisoned]


def test_commands_cannot_close_their_fence():
    text = to_markdown(hostile.poisoned(VIEW))
    fences = [line for line in text.splitlines() if re.fullmatch(r"`{3,}(text)?", line)]
    opening, closing = fences[-2:]
    inside = text.split(opening + "\n", 1)[1].split("\n" + closing, 1)[0]
    assert opening == closing + "text"
    assert closing not in inside


def test_odd_numbers_are_written():
    text = to_markdown(hostile.odd(VIEW))
    assert "undefined" in text and "\u221e" in text
    assert not re.search(r"\b(nan|inf)\b", text)

import math

import pytest

from noisescope.core.foreign import clean
from noisescope.report.wording import label, limits, number, shorten


@pytest.mark.parametrize(
    ("value", "form", "unit", "expected"),
    [
        (0.1234, "percent", "", "12.3 %"),
        (0.00012, "percent", "", "0.012 %"),
        (0.0, "percent", "", "0 %"),
        (-0.07, "percent", "", "-7.0 %"),
        (171.24, "times", "", "171.2\u00d7"),
        (0.1234, "times", "", "0.12\u00d7"),
        (126000, "count", "", "126,000"),
        (3.14159, "plain", "", "3.14"),
        (0.00123456, "plain", "nats", "0.00123 nats"),
        (1.5e-5, "plain", "", "1.50e-5"),
        (2.5e9, "plain", "", "2.50e9"),
        (1234.5, "plain", "", "1,234"),
        (0, "plain", "", "0"),
        (12.34, "seconds", "", "12.3 s"),
        (231, "seconds", "", "3.9 min"),
        (None, "percent", "", "\u2013"),
        (math.nan, "percent", "", "undefined"),
        (math.inf, "plain", "dB", "∞ dB"),
        (-math.inf, "plain", "", "-∞"),
    ],
)
def test_a_value_is_written_as_people_read_it(value, form, unit, expected):
    assert number(value, form, unit) == expected


def test_a_value_too_small_for_its_places_is_not_written_as_zero():
    for power in range(2, 12):
        assert float(number(10.0**-power, "percent").removesuffix(" %")) == pytest.approx(10.0 ** (2 - power))


def test_no_value_is_written_as_minus_zero():
    assert number(-0.0, "percent") == "0 %"
    assert number(-0.0) == "0"


def test_an_interval_leaves_the_unit_to_its_estimate():
    assert limits(0.1, 0.2, "percent") == "[10.0, 20.0]"
    assert limits(None, 0.2, "percent") == ""


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (0.1, "percent", "10 %"),
        (0.30000000000000004, "percent", "30 %"),
        (0.025, "percent", "2.5 %"),
        (20.0, "times", "20\u00d7"),
        (0.0002, "plain", "0.0002"),
        (5e-6, "plain", "5e-6"),
        (0.0, "plain", "0"),
        (136.5, "plain", "136.5"),
        (100.0, "plain", "100"),
        (10_000.0, "count", "10,000"),
    ],
)
def test_a_label_has_no_digits_that_say_nothing(value, form, expected):
    assert label(value, form) == expected


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07name", "name"),
        ("\x9b2Jgone", "gone"),
        ("a\x00b\x08c\x7f", "abc"),
        ("two\r\nlines\tand tabs", "two lines and tabs"),
        ("\u202egnp.exe", "gnp.exe"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("no \ufffe character", "no \ufffd character"),
        ("  spaces  ", "spaces"),
        ("Größe 大きさ", "Größe 大きさ"),
    ],
)
def test_foreign_text_is_cleaned(foreign, expected):
    assert clean(foreign) == expected


def test_cleaned_text_holds_nothing_that_a_terminal_or_a_file_acts_on():
    everything = clean("".join(map(chr, range(0x3000))) + "\ud800\udfff\ufeff\ufffe\uffff")
    assert not [c for c in everything if c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029\u202e\u2066"]
    everything.encode()
    assert clean(everything) == everything


def test_long_text_keeps_its_ends():
    assert shorten("model.layers.12.mlp.down_proj", 17) == "model.layer…_proj"
    assert shorten("short") == "short"
    assert len(shorten("x" * 10_000, 160)) == 160

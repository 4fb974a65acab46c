"""Figures are held against what their numbers ask for: lengths, places, steps of colour, contrast."""

import dataclasses
import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest

from noisescope.report.drawing.palette import DARK, HEAT_STEPS, LIGHT, LINES
from noisescope.report.drawing.scale import Scale, linear, log, ticks
from noisescope.report.svg import figures, picture_of, standalone
from noisescope.report.view import Bar, Bars, Curves, Dots, Figure, Heatmap, Severity
from report import example, hostile

SVG = "{http://www.w3.org/2000/svg}"
VIEW = example.view()
FIGURES = {"heatmap": example.heatmap, "bars": example.bars, "dots": example.dots, "curves": example.robustness}
EMPTY = {
    "heatmap": Heatmap("t", (), (), (), "m"),
    "bars": Bars("t", (), "m", "w"),
    "dots": Dots("t", (), (), "m", "w"),
    "curves": Curves("t", (), "x", "m"),
}


def drawing(block):
    return ET.fromstring(standalone(block))


def marks(root):
    return [group for group in root.iter(f"{SVG}g") if "mark" in (group.get("class") or "")]


def bodies(root):
    """The bar of each mark: its filled rectangle."""
    return [next(r for r in mark.iter(f"{SVG}rect") if r.get("class") != "hit") for mark in marks(root)]


@pytest.mark.parametrize("view", [VIEW, hostile.poisoned(VIEW), hostile.odd(VIEW)], ids=["example", "hostile", "odd"])
def test_every_figure_is_a_well_formed_file_of_its_own(view):
    drawn = figures(view)
    assert len(drawn) == 5
    for text in drawn.values():
        root = ET.fromstring(text)
        assert root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text
        assert not re.search(r"\b(nan|inf)\b", re.sub(r">[^<]*<|\"[^\"]*[^\d\s.,\"LMZnaif-][^\"]*\"", "", text))
        assert not [e for e in root.iter() if e.tag in (f"{SVG}script", f"{SVG}image", f"{SVG}style")]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", FIGURES)
def test_everything_lies_within_the_picture(name, narrow):
    picture = picture_of(FIGURES[name](), narrow=narrow)
    for node in picture.nodes:
        for tag, attributes in flat(node):
            if tag in ("rect", "line", "circle", "text"):
                for key, limit in (
                    ("x", picture.width),
                    ("x2", picture.width),
                    ("cx", picture.width),
                    ("y", picture.height),
                ):
                    assert -1 <= float(attributes.get(key, 0)) <= limit + 1, (tag, attributes)


def flat(node):
    """Tags with their attributes, but for what is moved as a whole."""
    if hasattr(node, "tag") and "transform" not in dict(node.attributes):
        yield node.tag, dict(node.attributes)
        for child in node.children:
            yield from flat(child)


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("narrow", [False, True])
def test_a_figure_of_nothing_is_drawn(name, narrow):
    assert picture_of(EMPTY[name], narrow=narrow).height > 0
    ET.fromstring(standalone(EMPTY[name]))


def test_bars_are_as_high_as_their_values_ask():
    block = example.bars()
    heights = [float(body.get("height")) for body in bodies(drawing(block))]
    per_unit = heights[11] / block.bars[11].figure.value
    assert per_unit > 500
    for height, bar in zip(heights, block.bars, strict=True):
        assert height == pytest.approx(per_unit * bar.figure.value, abs=0.02)


def test_bars_below_zero_hang_down():
    plain = Severity("robust", "low")
    up, down = Bar("a", Figure(0.2), plain), Bar("b", Figure(-0.1, -0.2, 0.0), plain)
    first, second = bodies(drawing(Bars("t", (up, down), "loss", "window", "percent")))
    assert float(first.get("y")) + float(first.get("height")) == pytest.approx(float(second.get("y")), abs=0.02)
    assert float(second.get("height")) == pytest.approx(float(first.get("height")) / 2, abs=0.02)


def test_an_avalanche_point_carries_its_flag_and_no_other_bar_does():
    block = example.bars()
    flagged = [
        index
        for index, mark in enumerate(marks(drawing(block)))
        if any(p.get("class") == "f-ink" for p in mark.iter(f"{SVG}polygon"))
    ]
    assert flagged == [11] and block.bars[11].marks == ("avalanche point",)


def test_cells_are_darker_the_larger_their_value():
    block = example.heatmap()
    steps = {}
    for mark in marks(drawing(block)):
        body = next((r for r in mark.iter(f"{SVG}rect") if "heat" in (r.get("class") or "")), None)
        where = mark.get("aria-label").split(":")[0]
        steps[where] = None if body is None else int(re.search(r"heat(\d)", body.get("class"))[1])
    found = []
    for r, operator in enumerate(block.operators):
        for c, layer in enumerate(block.layers):
            where = f"{operator}, " + ("outside the layers" if layer is None else f"layer {layer}")
            cell = block.cells[r][c]
            assert (steps[where] is None) == (cell is None)
            found += [] if cell is None else [(cell.value, steps[where])]
    ordered = [step for _, step in sorted(found)]
    assert ordered == sorted(ordered) and set(ordered) == set(range(HEAT_STEPS))


def test_points_lie_where_their_values_are_on_a_logarithmic_axis():
    block = example.dots()
    seen = {}
    for mark, dot in zip(marks(drawing(block)), block.dots, strict=True):
        assert dot.label in mark.get("aria-label")
        points = mark.find(f"{SVG}polygon").get("points").split()
        heights = [float(p.split(",")[1]) for p in points]
        if dot.severity.level == "critical":
            seen[dot.figure.value] = (min(heights) + max(heights)) / 2
    (a, y_a), *_, (b, y_b) = sorted(seen.items())
    slope = (y_b - y_a) / math.log(b / a)
    assert slope < 0
    for value, y in seen.items():
        assert y == pytest.approx(y_a + slope * math.log(value / a), abs=0.1)


def test_levels_differ_in_shape():
    shapes = set()
    for level in ("critical", "high", "moderate", "low", "undecided", "none"):
        block = Bars("t", (Bar("a", Figure(None), Severity(level, level)),), "m", "w")
        legend = next(g for g in drawing(block).iter(f"{SVG}g") if "translate(8" in (g.get("transform") or ""))
        (symbol,) = legend
        shapes.add((symbol.tag, len((symbol.get("points") or symbol.get("d") or "").split()), symbol.get("points")))
    assert len(shapes) == 6


@pytest.mark.parametrize(
    ("values", "low", "high", "labels"),
    [
        ([0.03, 0.27], 0.0, 0.3, [0.0, 0.1, 0.2, 0.3]),
        ([-0.2, 0.5], -0.2, 0.6, [-0.2, 0.0, 0.2, 0.4, 0.6]),
        ([7.0], 0.0, 8.0, [0.0, 2.0, 4.0, 6.0, 8.0]),
        ([], 0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([0.0, 0.0], 0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_an_axis_ends_at_labels(values, low, high, labels):
    scale = linear(values)
    assert (scale.low, scale.high) == pytest.approx((low, high))
    assert ticks(scale) == pytest.approx(labels)


@pytest.mark.parametrize(
    ("values", "low", "high"), [([11, 480], 10, 500), ([1e-6, 0.0, -3], 1e-6, 1e-5), ([0.3, 20], 0.2, 20), ([], 1, 10)]
)
def test_a_logarithmic_axis_ends_at_one_two_or_five(values, low, high):
    scale = log(values)
    assert (scale.low, scale.high) == pytest.approx((low, high))
    assert all(scale.low * 0.99 <= tick <= scale.high * 1.01 for tick in ticks(scale))
    assert scale.at(math.sqrt(scale.low * scale.high)) == pytest.approx(0.5)


def test_an_axis_over_many_decades_has_few_labels():
    assert 3 <= len(ticks(log([1e-20, 1e20]))) <= 7


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_their_ground(theme):
    for ground in ("paper", "panel"):
        for name in ("ink", "muted", "accent", "undecided", "critical", "high", "low"):
            assert contrast(theme[name], theme[ground]) >= 4.5, name
        for name in ("moderate", "none", *(f"line{i}" for i in range(LINES))):
            assert contrast(theme[name], theme[ground]) >= 3, name


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_heat_runs_one_way_in_lightness(theme):
    steps = [luminance(theme[f"heat{i}"]) for i in range(HEAT_STEPS)]
    ratios = [(max(a, b) + 0.05) / (min(a, b) + 0.05) for a, b in itertools.pairwise(steps)]
    assert steps == sorted(steps, reverse=theme is LIGHT)
    assert min(ratios) > 1.1


def test_words_in_cells_can_be_read():
    for theme in (LIGHT, DARK):
        for step in range(HEAT_STEPS):
            ink = "paper" if step > HEAT_STEPS // 2 else "ink"
            assert contrast(theme[ink], theme[f"heat{step}"]) >= 3, (step, ink)


# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
BLINDNESS = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen_by(colour, kind):
    """CIE Lab of a colour as somebody with a colour blindness sees it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rgb = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    if kind:
        rgb = [min(1.0, max(0.0, sum(w * c for w, c in zip(row, rgb, strict=True)))) for row in BLINDNESS[kind]]
    r, g, b = rgb
    x, y, z = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("kind", [None, "protan", "deutan", "tritan"])
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_levels_that_matter_differ_for_every_eye(theme, kind):
    """Neighbouring levels may come near each other, which is what the shapes are for; these may not."""
    for one, other in (("critical", "low"), ("critical", "moderate"), ("high", "low"), ("moderate", "low")):
        assert math.dist(seen_by(theme[one], kind), seen_by(theme[other], kind)) > 20, (one, other)


def test_the_same_block_is_drawn_the_same():
    block = dataclasses.replace(example.bars())
    assert standalone(block) == standalone(example.bars())


def test_between_whole_numbers_nothing_is_labelled():
    scale = Scale(0.0, 5.0, 0.0, 100.0)
    assert ticks(scale, 10) == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5]
    assert ticks(scale, 10, whole=True) == [0, 1, 2, 3, 4, 5]
    assert ticks(Scale(0.0, 29.0, 0.0, 100.0), 10, whole=True) == [0, 5, 10, 15, 20, 25]

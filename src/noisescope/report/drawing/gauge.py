"""The risk score on its scale, with the limits between the words."""

from __future__ import annotations

from itertools import pairwise

from noisescope.report.drawing.palette import filled
from noisescope.report.drawing.pieces import SMALL, Picture, line, text
from noisescope.report.drawing.scale import linear
from noisescope.report.markup import Node, element
from noisescope.report.view import Level, Risk
from noisescope.report.wording import label, points


def draw_gauge(risk: Risk, width: float) -> Picture | None:
    """The picture of a risk; None where it has no score."""
    if risk.score is None:
        return None
    limits = sorted(risk.thresholds, key=lambda t: t.value)
    top = max([risk.score, *(t.value * 1.5 for t in limits), 1.0])
    scale = linear([top]).onto(6.0, width - 6.0)
    edges = [0.0, *(t.value for t in limits), scale.high]
    levels: list[Level] = ["low", *(t.level for t in limits)]
    nodes: list[Node] = []
    for (start, end), level in zip(pairwise(edges), levels, strict=True):
        x = scale.at(start)
        box = {"x": x + 1, "y": 20.0, "width": max(0.0, scale.at(end) - x - 2), "height": 8.0, "rx": 2.0}
        nodes.append(element("rect", **box, fill_opacity="0.45", **filled(level)))
    nodes += [text(scale.at(v), 44, label(v), anchor="middle", size=SMALL) for v in edges[:-1]]
    x = scale.at(risk.score)
    nodes += [
        line(x, 15, x, 32, "ink", 2.5),
        element("path", d=f"M{x:.2f},17L{x - 6:.2f},7L{x + 6:.2f},7Z", **filled("ink")),
    ]
    named = ", ".join(f"{t.name} above {label(t.value)}" for t in limits)
    return Picture(width, 50.0, tuple(nodes), f"Risk score {points(risk.score)}: {risk.severity.word}. {named}.")

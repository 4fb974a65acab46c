"""The tables of the bench of faults, from its results. They run nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fault_cost import cost_tables

from noisescope.measure.statistics import proportion

Row = dict[str, Any]
GRADED = ("dead_zone", "noise", "gain_drift", "offset", "value_corruption", "exp_lut")


def report(rows: Sequence[Row]) -> Iterator[str]:
    """All tables as Markdown, and then every miss and every false alarm."""
    groups = {name: [r for r in rows if r["case"]["group"] == name] for name in {r["case"]["group"] for r in rows}}
    hit = {name: [r for r in group if r.get("changed", True)] for name, group in groups.items()}
    yield from _summary(hit)
    planted = groups.get("planted", []) + groups.get("channel", [])
    yield f"\n{sum(not r['changed'] for r in planted)} of {len(planted)} planted faults changed no value: left out.\n"
    yield from cost_tables(groups.get("cost", []) + groups.get("growth", []))
    for by in ("kind", "operator", "fraction", "magnitude", "model", "dtype"):
        yield ""
        yield from _table(hit.get("planted", []), by)
    yield from _classic(hit.get("classic", []))
    yield from _limits(hit.get("limit", []))
    yield ""
    yield from _misses(hit)


def _summary(hit: dict[str, list[Row]]) -> Iterator[str]:
    yield "| what is asked | share of the cases [95 % interval] |"
    yield "|---|---|"
    faults = hit.get("planted", []) + hit.get("channel", [])
    stuck = [r for r in faults if _channel(r) is not None]
    asked: list[tuple[str, list[Row], Callable[[Row], bool]]] = [
        ("layer of a fault of the engine, top-1", faults, is_layer),
        ("operator of it, top-1", faults, is_operator),
        ("channel of it, exact, where it is in one channel", stuck, is_channel),
        ("module of a fault that the engine does not know, top-1", hit.get("strange", []), is_module),
        ("two or three faults at once, all listed", hit.get("several", []), is_whole),
        ("module of a fault that fired, in one call in ten, top-1", hit.get("intermittent", []), is_module),
        ("false alarms on healthy models", hit.get("healthy", []), is_alarm),
    ]
    for words, rows, is_hit in asked:
        yield f"| {words} | {rate(sum(map(is_hit, rows)), len(rows))} |"


def rate(hits: int, of: int) -> str:
    """A share with its Wilson interval."""
    if not of:
        return "-"
    found = proportion(hits, of)
    return f"{hits} of {of} = {found.estimate:.1%} [{found.low:.1%}, {found.high:.1%}]"


def is_layer(row: Row) -> bool:
    """Whether the worst suspect is in the layer of the fault."""
    return row["said"] is not None and row["said"][0] == row["case"]["layer"]


def is_operator(row: Row) -> bool:
    """Whether the worst suspect is the operator of the fault."""
    return is_layer(row) and row["said"][1] == row["case"]["operator"]


def _channel(row: Row) -> int | None:
    found: int | None = row["case"].get("channel", 0 if row["case"]["kind"] == "stuck_channel" else None)
    return found


def is_channel(row: Row) -> bool:
    """Whether the channel of the fault is named, and no other."""
    return row["said"] is not None and row["said"][3] == [_channel(row)]


def is_module(row: Row) -> bool:
    """Whether the worst suspect is the very module."""
    return row["said"] is not None and row["said"][2] == row["case"]["path"]


def is_whole(row: Row) -> bool:
    """Whether all faults that changed a value are listed, and nothing else."""
    return bool(row["all_listed"])


def is_alarm(row: Row) -> bool:
    """Whether anything but health was found."""
    return row["verdict"] != "no fault found"


def _table(rows: Sequence[Row], by: str) -> Iterator[str]:
    yield f"| {by} | layer top-1 | operator top-1 |"
    yield "|---|---|---|"
    for value in sorted({str(r["case"][by]) for r in rows}):
        group = [r for r in rows if str(r["case"][by]) == value]
        layers, operators = sum(map(is_layer, group)), sum(map(is_operator, group))
        yield f"| {value} | {rate(layers, len(group))} | {rate(operators, len(group))} |"


def _classic(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield "\n| model | kind of fault | classic: its layer at rank 1 | default: its layer at rank 1 |"
    yield "|---|---|---|---|"
    for name in sorted({r["case"]["model"] for r in rows}):
        mine = [r for r in rows if r["case"]["model"] == name]
        for kind in [*sorted({r["case"]["kind"] for r in mine}), "all"]:
            group = [r for r in mine if kind in ("all", r["case"]["kind"])]
            firsts = [rate(sum(r[key] == 1 for r in group), len(group)) for key in ("rank", "default_rank")]
            yield f"| {name} | {kind} | {firsts[0]} | {firsts[1]} |"


def _limits(rows: Sequence[Row]) -> Iterator[str]:
    yield "\n| smallest magnitude found in all of three layers | float32 | bfloat16 |"
    yield "|---|---|---|"
    found = {(r["case"]["limit"], r["case"]["dtype"]): r["least"] for r in rows}
    for kind in GRADED:
        yield f"| {kind} | {found.get((kind, 'float32'))} | {found.get((kind, 'bfloat16'))} |"


def _misses(hit: dict[str, list[Row]]) -> Iterator[str]:
    faults = hit.get("planted", []) + hit.get("channel", [])
    missed = Counter((r["case"]["kind"], r["case"]["operator"]) for r in faults if not is_operator(r))
    yield f"missed, by kind and operator: {dict(missed)}"
    for name, is_hit in (("strange", is_module), ("several", is_whole), ("intermittent", is_module)):
        yield f"{name}, missed: {[(r['case'], r['said']) for r in hit.get(name, []) if not is_hit(r)]}"
    yield f"alarms: {[(r['case'], r['said']) for r in hit.get('healthy', []) if is_alarm(r)]}"

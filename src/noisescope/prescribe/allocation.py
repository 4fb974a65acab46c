"""Chooses a format for every group within a budget of bits: exactly, greedily, evenly, or by thresholds.

Pure arithmetic on tables of options: it knows no model, and predicts nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from noisescope.core.errors import BadInputError
from noisescope.core.precision import Group, Option, WeightFormat

Options = Sequence[Option]
# What the best sum of harms is scaled to: the solver's own tolerances, about 1e-6, are then far below what matters.
_WORTH = 1e4
# Beyond these a share of the clean score lost asks for 16 bits, and for 8.
LIMITS = ((0.15, 16), (0.05, 8))
LEAST = 4
# A share of the budget that is not worth a word.
_SLIGHT = 0.002


def exact(tables: Sequence[Options], budget: int) -> list[int]:
    """The choice of least total harm whose bits are within the budget, one index per table; optimal, not near it."""
    start = greedy(tables, budget)
    worst = _harm(tables, start)
    if worst <= 0.0:
        return start
    # Harms are not negative, so that one above the sum of a known choice cannot be part of a better one.
    cells = [
        (row, index)
        for row, table in enumerate(tables)
        for index, option in enumerate(table)
        if option.harm <= worst or index == start[row]
    ]
    unit = math.gcd(*(tables[row][index].bits for row, index in cells))
    room = budget // unit
    while True:
        found = _solve(tables, cells, room, unit, _WORTH / worst)
        if _size(tables, found) <= budget:
            return found if _harm(tables, found) <= worst else start
        # The solver keeps the budget to its own tolerance only.
        room -= 1


def _solve(
    tables: Sequence[Options], cells: Sequence[tuple[int, int]], room: int, unit: int, worth: float
) -> list[int]:
    cost = np.array([tables[row][index].harm * worth for row, index in cells])
    rows = np.array([row for row, _ in cells])
    one_each = csr_matrix((np.ones(len(cells)), (rows, np.arange(len(cells)))), shape=(len(tables), len(cells)))
    size = np.array([[tables[row][index].bits // unit for row, index in cells]], dtype=float)
    with _silent_library():
        found = milp(
            cost,
            constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(size, ub=room)],
            integrality=np.ones(len(cells), dtype=np.int64),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0.0},
        )
    if found.x is None:
        raise BadInputError(f"no choice of formats was found: {found.message}")
    chosen = [0] * len(tables)
    for (row, index), taken in zip(cells, found.x, strict=True):
        if taken > 0.5:
            chosen[row] = index
    return chosen


@contextmanager
def _silent_library() -> Iterator[None]:
    """HiGHS now and then writes a line to stdout from below Python, whatever it is told; only results belong there."""
    try:
        own = os.dup(1)
    except OSError:
        # Nothing is open there that a line could get into.
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 1)
        yield
    finally:
        os.dup2(own, 1)
        os.close(own)


def _harm(tables: Sequence[Options], chosen: Sequence[int]) -> float:
    return math.fsum(table[index].harm for table, index in zip(tables, chosen, strict=True))


def greedy(tables: Sequence[Options], budget: int) -> list[int]:
    """From the smallest format of each, again and again the raise that lowers harm most per bit, while one fits."""
    check(tables, budget)
    chosen = [table.index(min(table, key=lambda option: (option.bits, option.harm))) for table in tables]
    room = budget - _size(tables, chosen)
    while True:
        raises = [
            ((table[now].harm - option.harm) / (option.bits - table[now].bits), row, index)
            for row, (table, now) in enumerate(zip(tables, chosen, strict=True))
            for index, option in enumerate(table)
            if option.harm < table[now].harm and 0 < option.bits - table[now].bits <= room
        ]
        if not raises:
            return chosen
        _, row, index = max(raises)
        room -= tables[row][index].bits - tables[row][chosen[row]].bits
        chosen[row] = index


def spread(tables: Sequence[Options], budget: int) -> list[int]:
    """Blind to harm: two formats next to each other in size, the larger one given to groups at even distances.

    That is what uniform precision comes to at a size between those of two formats.
    """
    check(tables, budget)
    names = sorted({option.format for table in tables for option in table}, key=lambda name: _total(tables, name))
    fitting = [name for name in names if _total(tables, name) <= budget]
    low = fitting[-1] if fitting else names[0]
    high = names[min(names.index(low) + 1, len(names) - 1)]
    chosen = [_index(table, low) for table in tables]
    room = budget - _total(tables, low)
    step = _total(tables, high) - _total(tables, low)
    share, owed = (Fraction(room, step) if step else Fraction(0)), Fraction(0)
    for row, table in enumerate(tables):
        more = table[_index(table, high)].bits - table[chosen[row]].bits
        owed += share * more
        if more <= room and more <= 2 * owed:
            chosen[row] = _index(table, high)
            owed, room = owed - more, room - more
    return chosen


def _total(tables: Sequence[Options], name: str) -> int:
    return sum(table[_index(table, name)].bits for table in tables)


def _index(table: Options, name: str) -> int:
    return next(index for index, option in enumerate(table) if option.format == name)


def check(tables: Sequence[Options], budget: int) -> None:
    """Refuse tables with holes, harms that are none, and a budget below the smallest size there is."""
    for table in tables:
        if not table:
            raise BadInputError("a group without a format to choose; expected one or more.")
        strange = [option for option in table if not math.isfinite(option.harm) or option.harm < 0 or option.bits < 1]
        if strange:
            raise BadInputError(f"{strange[0]}: expected a finite harm of 0 or more and a size of 1 bit or more.")
    least = sum(min(option.bits for option in table) for table in tables)
    if least > budget:
        raise BadInputError(
            f"a budget of {budget:,} bits: the smallest formats take {least:,}. Ask for a larger average, or add a "
            "smaller format."
        )


def by_thresholds(
    groups: Sequence[Group], tables: Sequence[Options], budget: int, losses: Mapping[int | None, float]
) -> list[int]:
    """16, 8 or 4 bits by the share of the score that noise in a layer costs, then adjusted to the budget.

    Whole layers move one format at a time: while all is too large, of the layers with the largest format the one that
    loses least goes down; then, of those with the smallest that still fit a step up, the one that loses most goes up.
    """
    check(tables, budget)
    names = sorted({option.format for table in tables for option in table}, key=lambda name: _total(tables, name))
    layers = sorted({group.layer for group in groups}, key=lambda layer: losses[layer])
    at = {layer: _rung(names, losses[layer]) for layer in layers}

    def chosen() -> list[int]:
        return [_index(table, names[at[group.layer]]) for group, table in zip(groups, tables, strict=True)]

    while _size(tables, chosen()) > budget:
        highest = max(at.values())
        at[next(layer for layer in layers if at[layer] == highest)] -= 1
    while True:
        for layer in sorted(layers, key=lambda layer: (at[layer], -losses[layer])):
            at[layer] += 1
            if at[layer] < len(names) and _size(tables, chosen()) <= budget:
                break
            at[layer] -= 1
        else:
            return chosen()


def _rung(names: Sequence[str], loss: float) -> int:
    """The largest format of no more bits than are asked for; the smallest if there is none."""
    wanted = next((bits for limit, bits in LIMITS if loss > limit), LEAST)
    return max((i for i, name in enumerate(names) if WeightFormat.of(name).bits <= wanted), default=0)


def _size(tables: Sequence[Options], chosen: Sequence[int]) -> int:
    return sum(table[index].bits for table, index in zip(tables, chosen, strict=True))


def shortfall(tables: Sequence[Options], chosen: Sequence[int], budget: int) -> str:
    """Why bits of the budget are left over; empty where none are to speak of."""
    left = budget - _size(tables, chosen)
    if left < _SLIGHT * budget:
        return ""
    steps = [
        option.bits - table[index].bits
        for table, index in zip(tables, chosen, strict=True)
        for option in table
        if option.harm < table[index].harm and option.bits > table[index].bits
    ]
    if not steps:
        return "no larger format lowers the predicted harm of any group"
    if min(steps) <= left:
        return f"{left:,} bits are left that the rule does not use, though some would lower the predicted harm"
    return f"{left:,} bits are left, and the smallest step that lowers the predicted harm takes {min(steps):,}"

"""An experiment as lines of plain text for a terminal.

It works out nothing that the records do not say.
"""

from __future__ import annotations

from noisescope.diagnose.experiment import Experiment, Judged, WorldResult
from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import Interval


def experiment_lines(found: Experiment) -> list[str]:
    """The pre-test, then scores and verdicts of every world."""
    lines = ["Pre-test: noise of 5 %"]
    lines += [
        f"  {one.state}, {one.phase:<10}  size {one.error:.2e}  moves the gradient by {_share(one.deviation)}"
        for one in found.pretest
    ]
    for world in found.worlds:
        lines += ["", *_world(world)]
    return lines


def _world(world: WorldResult) -> list[str]:
    levels = [at.level for at in world.arms[0].levels]
    is_share = METRICS[world.world.task.metric].higher_is_better
    head = "".join(f"{f'at {level:g}':>24}" for level in levels)
    lines = [f"World {world.world.name}: {world.world.asks}", f"  {'trained with noise':<20}{head}"]
    for arm in world.arms:
        cells = [_share(at.score) if is_share else f"{at.score.estimate:.4g}" for at in arm.levels]
        lines.append(f"  {arm.name:<20}{''.join(f'{cell:>24}' for cell in cells)}")
        kept = ["" if at.kept is None else f"kept {_share(at.kept)}" for at in arm.levels]
        lines.append(f"  {'':<20}{''.join(f'{cell:>24}' for cell in kept)}")
    return lines + [f"  {line}" for one in world.claims for line in _claim(one)] + [f"  {n}" for n in world.notes]


def _claim(one: Judged) -> list[str]:
    found = "" if one.difference is None else f" Found: {_share(one.difference)}."
    tested = "" if one.p_verified is None else f" p {one.p_verified:.2g} that it holds, {one.p_falsified:.2g} not."
    return [f"[{one.verdict}] {one.claim.says}{found}{tested}", *([f"  {one.why}."] if one.why else [])]


def _share(interval: Interval) -> str:
    return f"{interval.estimate:.1%} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"

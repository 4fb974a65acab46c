"""What a gate leaves behind: the answer with whom it is about, and one line of history for each checkpoint.

Nothing is judged here, and no file is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from noisescope.core.codec import key_of
from noisescope.core.errors import unknown_name
from noisescope.diagnose.gate import Gate, whole
from noisescope.diagnose.setting import Setting
from noisescope.measure.metrics import METRICS
from noisescope.measure.statistics import Interval


@dataclass(frozen=True)
class Checkpoint:
    """Which model was asked: its name, the hash of its weights, and what another has to share to be compared.

    `data` is the name of the workload, as a command takes it.
    """

    name: str
    fingerprint: str
    architecture: str
    dtype: str
    data: str = ""


@dataclass(frozen=True)
class Visit:
    """One checkpoint at the gate, as the history keeps it. Visits with the same `terms` can be compared."""

    checkpoint: str
    fingerprint: str
    terms: str
    when: str
    verdict: str
    metric: str
    clean: Interval | None
    operators: tuple[tuple[str, Interval], ...]

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name("metric", self.metric, METRICS)


@dataclass(frozen=True)
class Gated:
    """A gate's answer with its checkpoint, the baseline's name (empty: there was none), and the visits so far."""

    gate: Gate
    checkpoint: Checkpoint
    baseline: str = ""
    history: tuple[Visit, ...] = ()


def terms_of(setting: Setting, checkpoint: Checkpoint) -> str:
    """A name for all that has to be equal for two visits to be comparable."""
    return key_of((whole(setting), checkpoint.architecture, checkpoint.dtype))


def visit_of(gate: Gate, checkpoint: Checkpoint, when: str) -> Visit:
    """The line that a gate adds to the history."""
    return Visit(
        checkpoint.name,
        checkpoint.fingerprint,
        terms_of(gate.setting, checkpoint),
        when,
        gate.verdict,
        gate.setting.metric,
        gate.clean,
        tuple((one.operator, one.harm) for one in gate.operators if one.harm is not None),
    )


def comparable(visits: Iterable[Visit], terms: str) -> tuple[Visit, ...]:
    """The visits of these terms in the order of the first of each checkpoint; of several the last one counts."""
    latest: dict[tuple[str, str], Visit] = {}
    for visit in visits:
        if visit.terms == terms:
            latest[visit.checkpoint, visit.fingerprint] = visit
    return tuple(latest.values())

"""The records of fault tests: which fault is planted where, what it may cost a model, and what came of it.

They measure nothing and judge nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from noisescope.core.errors import BadInputError
from noisescope.core.records import Corruption, Injection, fault, is_number, operator_names
from noisescope.diagnose.setting import Setting
from noisescope.measure.statistics import Interval

Moment = Literal["always", "one step"]
Level = Literal["operator", "window", "channel"]
Side = Literal["", "input", "output"]
PASS, FAIL, UNDECIDED, ERROR = "pass", "fail", "undecided", "error"


@dataclass(frozen=True)
class Accepted:
    """What a fault may cost; None is no limit.

    `loss` is a share of the score, under a fault of one step a share of the tokens. `nonfinite` is a share of the
    positions that are scored. The first good step has to come before step `recovery` behind the faulty one.
    """

    loss: float
    nonfinite: float | None = None
    recovery: int | None = None
    located: bool = False

    def __post_init__(self) -> None:
        for name, value in (("loss", self.loss), ("nonfinite", self.nonfinite), ("recovery", self.recovery)):
            if value is not None and (not is_number(value) or not 0 <= value < float("inf")):
                raise BadInputError(f"accepted {name} {value!r}: expected a number of at least 0.")


@dataclass(frozen=True)
class FaultCase:
    """One test: a fault of the simulated hardware, where and when it strikes, and what it may cost.

    No operators are all of them, no layers the whole model. With a `path` the fault strikes `channels` at one side of
    that module. `because` says what in the diagnosis asks for the test; `is_critical` is False where nothing was
    critical and this is the worst there is.
    """

    name: str
    level: Level
    kind: str
    magnitude: float
    rate: float | None
    channels: tuple[int, ...] | None
    operators: tuple[str, ...] | None
    layers: tuple[int, ...] | None
    path: str
    side: Side
    moment: Moment
    accepted: Accepted
    is_critical: bool
    because: str

    def __post_init__(self) -> None:
        operator_names(self.operators)
        if bool(self.path) != bool(self.side) or (self.path and not self.channels):
            raise BadInputError(
                f"fault test {self.name!r}: path {self.path!r}, side {self.side!r}: expected both or neither, and "
                "channels with them."
            )
        if self.moment == "always" and self.accepted.recovery is not None:
            raise BadInputError(f"fault test {self.name!r}: a fault that stays leaves nothing to recover from.")
        if not self.corruption.strength:
            raise BadInputError(f"fault test {self.name!r}: magnitude 0 is a healthy machine; expected one above 0.")

    @property
    def corruption(self) -> Corruption:
        """The fault itself."""
        params = {"rate": self.rate, "channels": self.channels}
        return fault(self.kind, self.magnitude, **{name: value for name, value in params.items() if value is not None})

    def injection(self, seed: int = 0) -> Injection:
        """The fault where the case says. What strikes one side of a module is placed by whoever has the model."""
        return Injection.of(self.corruption, layers=self.layers, operators=self.operators, seed=seed)


@dataclass(frozen=True)
class FaultPlan:
    """The cases that a diagnosis asks for; `notes` say what it gives no case for, and why.

    `model` is the name of the diagnosed model, `fingerprint` its hash.
    """

    model: str
    fingerprint: str
    cases: tuple[FaultCase, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [case.name for case in self.cases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            seen = f"{', '.join(twice)} more than once" if twice else "none"
            raise BadInputError(f"fault tests: {seen}; expected one or more cases, each with a name of its own.")


@dataclass(frozen=True)
class Located:
    """What `locate` said of the faulty machine: its verdict, and the rank of the first suspect at the right place.

    `suspects` is how many it named, `elsewhere` how many of them are not where the fault is.
    """

    verdict: str
    rank: int | None
    suspects: int
    elsewhere: int

    @property
    def is_found(self) -> bool:
        """Whether a fault was found, and one suspect is at its place."""
        return self.verdict == "fault" and self.rank is not None


@dataclass(frozen=True)
class Lost:
    """What a fault that stays costs: the share of the score, and how many of the scored positions are not finite."""

    loss: Interval | None = None
    nonfinite: int = 0
    positions: int = 0
    gaps: tuple[str, ...] = ()
    trials: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """The share of positions that are not finite."""
        return self.nonfinite / self.positions if self.positions else 0.0


@dataclass(frozen=True)
class Stepped:
    """What a fault of one generation step costs, beside the run without it on the same tokens.

    `lost` is the share of lost tokens in each step from the faulty one on. A sample has recovered at the first of
    some steps in a row that give the healthy run's tokens; `recovery` counts from 1, the step behind the faulty one.
    `unrecovered` of the sequences had not recovered when the run ended, and count as if they did then.
    """

    loss: Interval
    lost: tuple[Interval, ...]
    recovery: Interval
    unrecovered: int
    sequences: int
    nonfinite: int
    positions: int


@dataclass(frozen=True)
class FaultOutcome:
    """One case with its verdict: pass or fail where that is shown, undecided, or error where it could not be run.

    `reasons` say which limit was broken or is open. `place` is where the fault was put, if the case left that open.
    """

    case: FaultCase
    verdict: str
    reasons: tuple[str, ...]
    loss: Interval | None = None
    nonfinite: int = 0
    positions: int = 0
    stepped: Stepped | None = None
    located: Located | None = None
    place: str = ""
    more_samples: int | None = None
    trials: tuple[str, ...] = ()

    @property
    def nonfinite_rate(self) -> float | None:
        """The share of positions that were not finite; None where none was looked at."""
        return self.nonfinite / self.positions if self.positions else None


@dataclass(frozen=True)
class FaultTests:
    """What a model made of the cases. `setting` says on what the faults that stay were measured."""

    plan: FaultPlan
    setting: Setting
    outcomes: tuple[FaultOutcome, ...]

    @property
    def verdict(self) -> str:
        """The worst of the cases."""
        seen = {outcome.verdict for outcome in self.outcomes}
        return next(verdict for verdict in (FAIL, ERROR, UNDECIDED, PASS) if verdict in seen)

"""What a YAML file asks of a training run: noise in its block `noise:`, a diagnosis in its block `diagnostic:`.

A mistake is told with its file and line. It neither trains nor measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from noisescope.core.errors import BadInputError, NoisescopeError, unknown_name
from noisescope.core.records import is_number, whole_number
from noisescope.runs.checkups import Checkups
from noisescope.runs.diagnosing import Wanted
from noisescope.runs.settings_file import BLOCKS, DIAGNOSTIC, NOISE, SWITCH, Entry, read
from noisescope.sweep.noisy_training import NoisePlan, noise_plan

Reader = Callable[[Any], Any]
Settings = dict[str, Any]


def noise_in(path: Path) -> NoisePlan:
    """The noise of a file. What its block leaves out, schedule or norms, there is none of."""
    found = _block(path, NOISE, _NOISE)
    if found is None or not {"schedule", "norms"} & found.keys():
        raise BadInputError(f"{path}: no noise in it; expected a block {NOISE}: with schedule, norms, or both.")
    return noise_plan(**{"schedule": None, **found})


def checkups_in(path: Path) -> Checkups | None:
    """The diagnoses that a file asks for; None where it asks for none or they are switched off."""
    found = _block(path, DIAGNOSTIC, _DIAGNOSTIC)
    if found is None:
        return None
    if "every" not in found:
        raise BadInputError(f"{path}: {DIAGNOSTIC} without every; expected the number of steps from one to the next.")
    wanted = {_WANTED.get(name, name): found.pop(name) for name in list(found) if name in _OF_WANTED}
    return Checkups(wanted=Wanted(**wanted), **found)


def _block(path: Path, block: str, readers: Mapping[str, Reader]) -> Settings | None:
    """The settings of one block; None where there is no such block, or it is switched off."""
    entries = read(path)
    for entry in entries:
        if entry.block not in BLOCKS:
            raise BadInputError(f"{entry.place}: {unknown_name('block', entry.name, BLOCKS)}")
    mine = [entry for entry in entries if entry.block == block]
    found = {}
    for entry in mine:
        name = entry.name.replace("-", "_")
        if name in found:
            raise BadInputError(f"{entry.place}: {entry.name} was already set; remove one.")
        found[name] = _value(entry, {SWITCH: _switch, **readers})
    return found if mine and found.pop(SWITCH, True) else None


def _value(entry: Entry, readers: Mapping[str, Reader]) -> Any:
    name = entry.name.replace("-", "_")
    if name not in readers:
        known = [reader.replace("_", "-") for reader in readers]
        raise BadInputError(f"{entry.place}: {unknown_name('setting', entry.name, known)}")
    try:
        return readers[name](entry.value)
    except NoisescopeError as problem:
        said = str(problem)
        raise BadInputError(f"{entry.place}: {said if entry.name in said else f'{entry.name}: {said}'}") from None


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInputError(f"{value!r}: expected true or false.")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadInputError(f"{value!r}: expected a text.")
    return value


def _path(value: Any) -> Path:
    return Path(_text(value)).expanduser()


def _count(value: Any) -> int:
    return whole_number("number", value, 1)


def _whole(value: Any) -> int:
    return whole_number("number", value)


def _positive(value: Any) -> float:
    if not is_number(value) or not 0 < value < float("inf"):
        raise BadInputError(f"{value!r}: expected a finite number above 0.")
    return float(value)


def _mode(value: Any) -> str:
    return Wanted(mode=_text(value)).mode


def _in_a_plan(name: str, kind: type | tuple[type, ...], expected: str) -> Reader:
    """A reader of one setting of a plan, which the plan itself checks."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BadInputError(f"{value!r}: expected {expected}.")
        alone: Settings = {"schedule": 0.05, name: value}
        noise_plan(**alone)
        return value

    return check


_A_SCHEDULE = "a schedule, such as decay or exponential:0.05:0.001"
_NOISE: Mapping[str, Reader] = MappingProxyType(
    {
        "schedule": _in_a_plan("schedule", (str, int, float), _A_SCHEDULE),
        "norms": _in_a_plan("norms", (str, int, float), _A_SCHEDULE),
        "kind": _in_a_plan("kind", str, "a kind of noise"),
        "layers": _in_a_plan("layers", (int, list), "a layer number, or a list of them"),
        "operators": _in_a_plan("operators", (str, list), "the name of an operator, or a list of them"),
        "phases": _in_a_plan("phases", (str, list), "forward, backward, or a list of them"),
        "factors": _in_a_plan("factors", dict, "factors by layer, such as {0: 0.5}"),
        "operator_factors": _in_a_plan("operator_factors", dict, "factors by operator, such as {softmax: 2}"),
        "seed": _whole,
    }
)
# What the diagnosis calls otherwise than the command line does.
_WANTED: Mapping[str, str] = MappingProxyType({"noise_scale": "scale"})
_OF_WANTED: Mapping[str, Reader] = MappingProxyType(
    {
        "mode": _mode,
        "noise_scale": _positive,
        "window_size": _count,
        "step_size": _count,
        "outlier_threshold": _positive,
        "seeds": _count,
        "seed": _whole,
        "exhaustive": _switch,
    }
)
_DIAGNOSTIC: Mapping[str, Reader] = MappingProxyType(
    {
        **_OF_WANTED,
        "every": _count,
        "data": _text,
        "samples": _count,
        "metric": _text,
        "calibration": _text,
        "baseline": _path,
        "history": _path,
        "out": _path,
        "label": _text,
    }
)

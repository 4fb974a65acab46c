"""Reads the settings of the switchboard, and of noise in verl, from environment variables; it changes nothing itself.

Every name exists with the prefix `NOISESCOPE_`; those that users of the verl fork know also with `VERL_NOISY_OPS_`,
which is read second. Switches take 1, true, yes, on and 0, false, no, off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescope.core.errors import BadInputError
from noisescope.core.records import Scaling
from noisescope.verl.settings import Settings, checked_layers, checked_operators, layer_factors, operator_factors

if TYPE_CHECKING:
    from noisescope.sweep.noisy_training import NoisePlan

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
OWN, FORK = "NOISESCOPE_", "VERL_NOISY_OPS_"


@dataclass(frozen=True)
class Switch:
    """A variable without its prefix: an example, what holds while it is not set, what it does, and who knows it."""

    example: str
    left_out: str
    meaning: str
    shared: bool = False


SWITCHES: Mapping[str, Switch] = {
    "ENABLED": Switch("1", "no noise", "inject from the import on; without it the others are not read", shared=True),
    "SCALE": Switch("0.02", "0.05", "base scale of the noise", shared=True),
    "TYPE": Switch(
        "fp8_e4m3", "relative_gaussian", "noise kind or number format, see the [table of kinds](kinds.md)", shared=True
    ),
    "ALL_OPS": Switch("1", "linear, matmul, bmm", "every operator", shared=True),
    "FORWARD_ONLY": Switch("1", "both phases", "noise in outputs alone", shared=True),
    "BACKWARD_ONLY": Switch(
        "1", "both phases", "noise in gradients alone; an error together with the one above", shared=True
    ),
    "TRAINING_ONLY": Switch(
        "1", "every pass", "leave evaluation and generation clean: passes that begin without gradients", shared=True
    ),
    "LAYERS": Switch("0,3-5", "all layers", "layers to inject into"),
    "OPERATORS": Switch("softmax,layernorm", "as `ALL_OPS` says", "operators to inject into; wins over `ALL_OPS`"),
    "OPERATOR_SCALES": Switch("softmax=2,linear=0.5", "no factors", "factors on the scale by operator"),
    "LAYER_SCALES": Switch("0=0.5,7=2", "no factors", "factors on the scale by layer"),
    "LAYER_SCALES_ABSOLUTE": Switch("1", "factors", "the numbers by layer are the scales themselves"),
    "SEED": Switch("7", "0", "seed of the noise"),
}
# Read in a verl run alone, where noise is in the training passes of the actor.
TRAINING: Mapping[str, Switch] = {
    "SCHEDULE": Switch(
        "exponential:0.05:0.001",
        "`SCALE` throughout",
        "scale of the noise in operators by the progress of the run, in place of `SCALE`",
    ),
    "NORMS": Switch(
        "qerl",
        "no such noise",
        "schedule of noise on the weights of norms; operators then have noise only by a scale or a schedule",
    ),
    "CONFIG": Switch(
        "noise.yaml",
        "the variables",
        "YAML file with a block `noise:`, in place of all other variables; every node has to see it",
    ),
}
_SHARED = frozenset(name for name, one in SWITCHES.items() if one.shared)
# The file itself, and what may say so once more.
_BESIDE_A_FILE = ("CONFIG", "ENABLED")


def settings_from(environ: Mapping[str, str]) -> Settings | None:
    """The settings that the environment asks for; None if it does not ask for noise."""
    if not _flag(environ, "ENABLED"):
        return None
    forward_only, backward_only = _flag(environ, "FORWARD_ONLY"), _flag(environ, "BACKWARD_ONLY")
    if forward_only and backward_only:
        both = " and ".join(_read(environ, name)[0] for name in ("FORWARD_ONLY", "BACKWARD_ONLY"))
        raise BadInputError(f"{both} are both set: expected at most one; unset one of them, or both for both phases.")
    operators, layers = _read(environ, "OPERATORS")[1], _read(environ, "LAYERS")[1]
    settings = Settings(
        scale=_number(environ, "SCALE", float, 0.05),
        kind=_read(environ, "TYPE")[1] or "relative_gaussian",
        all_operators=_flag(environ, "ALL_OPS"),
        forward=not backward_only,
        backward=not forward_only,
        layers=None if layers is None else checked_layers([i for part in _parts(layers) for i in _range(part)]),
        operators=None if operators is None else checked_operators(_parts(operators)),
        scaling=_scaling(environ),
        seed=_number(environ, "SEED", int, 0),
        training_only=_flag(environ, "TRAINING_ONLY"),
    )
    settings.injection()
    return settings


def asks_for_training(environ: Mapping[str, str]) -> bool:
    """Whether a verl run is to be noisy. Cheap, because it is asked in every process of every such run."""
    return _read(environ, "CONFIG")[1] is not None or _flag(environ, "ENABLED")


def plan_from(environ: Mapping[str, str]) -> NoisePlan:
    """The noise that the environment asks for in a verl run."""
    from noisescope.runs.training_file import noise_in

    config = _read(environ, "CONFIG")[1]
    if config is None:
        return _plan(environ)
    beside = [
        variable
        for name in (*SWITCHES, *TRAINING)
        if name not in _BESIDE_A_FILE
        for variable, value in [_read(environ, name)]
        if value is not None
    ]
    if beside:
        raise BadInputError(f"{beside[0]} beside NOISESCOPE_CONFIG: write it into {config}, or leave that out.")
    return noise_in(Path(config))


def _plan(environ: Mapping[str, str]) -> NoisePlan:
    from noisescope.sweep.noisy_training import NoisePlan, schedule_of

    settings = settings_from(environ)
    if settings is None:
        raise BadInputError("NOISESCOPE_ENABLED is not set: expected 1, for noise in training.")
    if settings.scaling.layers_absolute:
        raise BadInputError("NOISESCOPE_LAYER_SCALES_ABSOLUTE: a schedule has scales of its own; expected factors.")
    schedule, norms = _read(environ, "SCHEDULE")[1], _read(environ, "NORMS")[1]
    scale = _read(environ, "SCALE")
    if schedule and scale[1]:
        raise BadInputError(f"{scale[0]} beside NOISESCOPE_SCHEDULE: expected one of them.")
    if schedule is None and (scale[1] or norms is None):
        schedule = str(settings.scale)
    asked = settings.injection()
    return NoisePlan(
        schedule_of(schedule),
        settings.kind,
        asked.layers,
        asked.operators,
        asked.phases,
        asked.scaling.layers,
        schedule_of(norms),
        settings.seed,
        operator_factors=asked.scaling.operators,
    )


def _scaling(environ: Mapping[str, str]) -> Scaling:
    return Scaling(
        operator_factors(_pairs(environ, "OPERATOR_SCALES")),
        layer_factors(_pairs(environ, "LAYER_SCALES")),
        _flag(environ, "LAYER_SCALES_ABSOLUTE"),
    )


def _read(environ: Mapping[str, str], name: str) -> tuple[str, str | None]:
    """The variable that is set, with its value; an empty one counts as not set."""
    for prefix in (OWN, FORK) if name in _SHARED else (OWN,):
        value = environ.get(prefix + name, "").strip()
        if value:
            return prefix + name, value
    return OWN + name, None


def _flag(environ: Mapping[str, str], name: str) -> bool:
    variable, value = _read(environ, name)
    if value is None:
        return False
    if value.lower() not in _SWITCH:
        raise BadInputError(f"{variable}={value!r}: expected one of {', '.join(_SWITCH)}.")
    return _SWITCH[value.lower()]


def _number(environ: Mapping[str, str], name: str, kind: type, default: float) -> Any:
    variable, value = _read(environ, name)
    try:
        return default if value is None else kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise BadInputError(f"{variable}={value!r}: expected {what}.") from None


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _range(part: str) -> range | list[Any]:
    first, dash, last = part.partition("-")
    if dash and first.strip().isdecimal() and last.strip().isdecimal() and int(first) <= int(last):
        return range(int(first), int(last) + 1)
    return [part]


def _pairs(environ: Mapping[str, str], name: str) -> dict[Any, Any]:
    variable, value = _read(environ, name)
    pairs = {}
    for part in _parts(value or ""):
        key, _, factor = part.partition("=")
        try:
            pairs[key.strip()] = float(factor)
        except ValueError:
            raise BadInputError(f"{variable}: {part!r} is not name=number, such as 0.5 in 'x=0.5'.") from None
    return pairs

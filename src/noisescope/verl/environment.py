"""Reads the settings of the process-wide switchboard from environment variables; it changes nothing by itself.

Every name exists with the prefix `NOISESCOPE_`; those marked * also with `VERL_NOISY_OPS_`, which is read second.

    ENABLED *              1 to inject; without it the others are not read
    SCALE *                base scale of the noise, 0.05
    TYPE *                 noise kind or number format, relative_gaussian
    ALL_OPS *              1 for every operator instead of linear, matmul and bmm
    FORWARD_ONLY *         1 for noise in outputs alone
    BACKWARD_ONLY *        1 for noise in gradients alone
    TRAINING_ONLY *        1 to leave evaluation and generation, which run without gradients, clean
    LAYERS                 such as 0,3-5; all when left out
    OPERATORS              such as softmax,layernorm; wins over ALL_OPS
    OPERATOR_SCALES        factors such as softmax=2,linear=0.5
    LAYER_SCALES           factors such as 0=0.5,7=2
    LAYER_SCALES_ABSOLUTE  1 if those are the scales themselves
    SEED                   0

Switches take 1, true, yes, on and 0, false, no, off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noisescope.core.errors import BadInputError
from noisescope.core.records import Scaling
from noisescope.verl.settings import Settings, checked_layers, checked_operators, layer_factors, operator_factors

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SHARED = ("ENABLED", "SCALE", "TYPE", "ALL_OPS", "FORWARD_ONLY", "BACKWARD_ONLY", "TRAINING_ONLY")


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


def _scaling(environ: Mapping[str, str]) -> Scaling:
    return Scaling(
        operator_factors(_pairs(environ, "OPERATOR_SCALES")),
        layer_factors(_pairs(environ, "LAYER_SCALES")),
        _flag(environ, "LAYER_SCALES_ABSOLUTE"),
    )


def _read(environ: Mapping[str, str], name: str) -> tuple[str, str | None]:
    """The variable that is set, with its value; an empty one counts as not set."""
    for prefix in ("NOISESCOPE_", "VERL_NOISY_OPS_") if name in _SHARED else ("NOISESCOPE_",):
        value = environ.get(prefix + name, "").strip()
        if value:
            return prefix + name, value
    return "NOISESCOPE_" + name, None


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

"""Process-wide noisy operators under the names that users of the verl fork know.

The names are theirs, the semantics are those of the engine: noise keyed by seed and site, attributed to the layer that
computes, exact in short formats. Importing this module does nothing unless the environment asks for noise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from noisescope.core.records import Scaling
from noisescope.core.vocabulary import PHASES
from noisescope.inject.tally import Counts
from noisescope.verl.environment import settings_from
from noisescope.verl.settings import checked_layers, checked_operators, checked_seed, layer_factors, operator_factors
from noisescope.verl.switchboard import Switchboard

BOARD = Switchboard()
UNKNOWN_LAYER = "unknown"


def enable_noisy_ops(
    error_scale: float = 0.05, error_type: str = "relative_gaussian", all_ops_mode: bool = False
) -> None:
    """Inject noise into linear, matmul and bmm, or with `all_ops_mode` into every operator. Again to change it."""
    BOARD.change(scale=error_scale, kind=error_type, all_operators=all_ops_mode)
    BOARD.enable()


def disable_noisy_ops() -> dict[str, Any]:
    """Stop injecting; returns the statistics."""
    BOARD.disable()
    return get_injection_stats()


@contextmanager
def noisy_ops_context(
    error_scale: float = 0.05, error_type: str = "relative_gaussian", all_ops_mode: bool = False
) -> Iterator[None]:
    """Noise inside a block. What held before the block holds again after it, also after an exception."""
    settings, enabled = BOARD.settings, BOARD.enabled
    enable_noisy_ops(error_scale, error_type, all_ops_mode)
    try:
        yield
    finally:
        BOARD.adopt(settings)
        if enabled:
            BOARD.enable()
        else:
            BOARD.disable()


def set_noise_phases(forward: bool = True, backward: bool = True) -> None:
    """Which phases are noisy; survives disabling and enabling."""
    BOARD.change(forward=bool(forward), backward=bool(backward))


def get_noise_phases() -> dict[str, bool]:
    """Which phases are noisy."""
    return {"forward_enabled": BOARD.settings.forward, "backward_enabled": BOARD.settings.backward}


def set_selective_layers(layers: Iterable[int] | None) -> None:
    """Layers to inject into: None all, [] none."""
    BOARD.change(layers=checked_layers(layers))


def get_selective_layers() -> list[int] | None:
    """The layers that are injected into; None is all."""
    chosen = BOARD.settings.layers
    return None if chosen is None else list(chosen)


def set_selective_operators(operators: Iterable[str] | None) -> None:
    """Operators to inject into, whatever the mode: None leaves that to the mode, [] is none."""
    BOARD.change(operators=checked_operators(operators))


set_selective_ops = set_selective_operators


def get_selective_operators() -> list[str] | None:
    """The operators that are injected into; None leaves that to the mode."""
    chosen = BOARD.settings.operators
    return None if chosen is None else list(chosen)


def set_operator_noise_scales(scales: Mapping[str, float] | None) -> None:
    """Factors on the scale by operator; None or {} removes them."""
    BOARD.change(scaling=replace(BOARD.settings.scaling, operators=operator_factors(scales)))


def set_per_layer_scales(scales: Mapping[int, float] | None, absolute: bool = False) -> None:
    """Factors on the scale by layer, or with `absolute` the scales themselves; None or {} removes them."""
    scaling = Scaling(BOARD.settings.scaling.operators, layer_factors(scales), bool(absolute))
    BOARD.change(scaling=scaling)


def set_noise_seed(seed: int = 0) -> None:
    """The seed of all noise: the same seed over the same calls gives the same noise."""
    BOARD.change(seed=checked_seed(seed))


def set_training_only(training_only: bool = True) -> None:
    """Whether evaluation and generation, which run without gradients, stay clean."""
    BOARD.change(training_only=bool(training_only))


def register_layer_hooks(model: nn.Module) -> int:
    """Make the layers of a model known before its first call; returns how many there are.

    A model that is called learns its layers by itself. Needed for `model.compile()`, and to be told of a model in
    which no layers can be found.
    """
    return BOARD.register(model)


def get_current_layer() -> int | None:
    """The layer that is running in this thread while noise is on; None outside the layers."""
    place = BOARD.instrument.place_now()
    return None if place is None else place.layer


def get_injection_stats() -> dict[str, Any]:
    """Settings and totals.

    `elements` were reached, `elements_compared` of them were looked at before and after; `elements_changed` and the
    realised noise are those of the latter. In large tensors a part stands for all.
    """
    settings, stats = BOARD.settings, BOARD.stats
    return {
        "enabled": BOARD.enabled,
        "error_scale": settings.scale,
        "error_type": settings.kind,
        **get_noise_phases(),
        "total_forward": stats.total_forward,
        "total_backward": stats.total_backward,
        "elements": stats.elements,
        "elements_compared": sum(seen.measured for phase in PHASES for seen in stats.by_site(phase).values()),
        "elements_changed": stats.changed,
        "realised_relative_noise": stats.realised,
    }


def get_layer_injection_stats() -> dict[int | str, dict[str, int]]:
    """{layer: {"forward": n, "backward": n}}; what lies outside the layers is under "unknown"."""
    return {UNKNOWN_LAYER if k is None else k: v for k, v in _plain(BOARD.stats.by_layer).items()}


def get_operator_injection_stats() -> dict[str, dict[str, int]]:
    """{operator: {"forward": n, "backward": n}}."""
    return _plain(BOARD.stats.by_operator)


def _plain(counts: Counts) -> dict[Any, dict[str, int]]:
    return {key: {"forward": c.forward, "backward": c.backward} for key, c in counts.items()}


def reset_injection_stats() -> None:
    """Count from zero. The three tables are views of one record, so they are reset together."""
    BOARD.stats.reset()


reset_layer_injection_stats = reset_injection_stats
reset_operator_injection_stats = reset_injection_stats


def print_injection_summary() -> None:
    """Print settings, totals and the table by operator."""
    stats = get_injection_stats()
    state = "on" if stats["enabled"] else "off"
    lines = [
        f"noisy operators {state}: {stats['error_type']} of scale {stats['error_scale']:g}",
        f"  injections: {stats['total_forward']} forward, {stats['total_backward']} backward",
        f"  realised relative noise: {stats['realised_relative_noise']:.3g} over {stats['elements']} values",
    ]
    for name, count in get_operator_injection_stats().items():
        lines.append(f"  {name:<12} {count['forward']:>8} forward {count['backward']:>8} backward")
    lines += [f"  {name:<12} selected, never reached since the last reset" for name in _silent_operators()]
    if not stats["total_forward"] + stats["total_backward"]:
        lines.append("  nothing was injected: no operator that is selected has run since the last reset")
    print("\n".join(lines))  # noqa: T201 - what the function is for


def _silent_operators() -> list[str]:
    """Operators that were asked for by name and have not run."""
    reached = BOARD.stats.by_operator
    return [name for name in BOARD.settings.operators or () if name not in reached]


if (_asked := settings_from(os.environ)) is not None:
    BOARD.adopt(_asked)
    BOARD.enable()

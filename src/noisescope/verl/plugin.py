"""What verl loads by itself, in every process, as an entry point of its group `verl.plugins`.

It does nothing, and loads next to nothing, unless the environment asks for noise. Then it registers an engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.verl.environment import asks_for_training, plan_from

VENDOR = "noisescope"
VERL_ENGINE_VENDOR = "VERL_ENGINE_VENDOR"
_SWITCHBOARD = "noisescope.verl.noisy_ops"


def enter(environ: MutableMapping[str, str]) -> bool:
    """Have verl train with our engine if the environment asks for noise; returns whether it does."""
    if not asks_for_training(environ):
        return False
    chosen = environ.get(VERL_ENGINE_VENDOR) or VENDOR
    if chosen != VENDOR:
        raise BadInputError(
            f"{VERL_ENGINE_VENDOR}={chosen}: the run would train without the noise; expected {VENDOR}, or nothing."
        )
    if _SWITCHBOARD in sys.modules and sys.modules[_SWITCHBOARD].BOARD.enabled:
        raise BadInputError(
            f"{_SWITCHBOARD} is loaded and injects into every model of the process, rollouts and references too; "
            "take it out of VERL_USE_EXTERNAL_MODULES, this plugin takes its place."
        )
    plan = plan_from(environ)
    from noisescope.verl.registering import register

    register(plan, VENDOR)
    environ[VERL_ENGINE_VENDOR] = VENDOR
    return True


def _enter_or_exit() -> None:
    """verl passes over a plugin that fails, and would train without the noise; it does not pass over an exit."""
    try:
        enter(os.environ)
    except NoisescopeError as problem:
        raise SystemExit(f"noisescope: {problem}") from problem
    except Exception as problem:
        raise SystemExit(
            f"noisescope: cannot register with verl ({type(problem).__name__}: {problem}); expected verl 0.9. Unset "
            "NOISESCOPE_ENABLED and NOISESCOPE_CONFIG to train without noise."
        ) from problem


_enter_or_exit()

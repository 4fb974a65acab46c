"""Under which names and keys a run folder keeps what was concluded of a model, and what was seen of it before.

It looks at nothing itself and needs no torch, so that a report finds what is kept without the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from noisescope.core.codec import key_of
from noisescope.core.precision import WeightFormat

# The setting of a run folder that names the calibration workload by its content.
CALIBRATION = "calibration"
DIAGNOSIS, ROBUSTNESS, LOCALIZATION, PRECISION = "diagnosis", "robustness", "localization", "precision"
COMPARISON, GATE, PLAN, SMOOTHING = "comparison", "gate", "plan", "smoothing"
EXPERIMENT = "experiment"
FAULT_PLAN, FAULTS, BIT_CURVES = "fault-plan", "faults", "bit-curves"
# What a screening looks at; more changes its ranking by less than the noise of the injections that confirm it.
TOKENS = 1024
# Its draws of directions: with one the ranking inside an operator moves from draw to draw.
DRAWS = 3


def profile_key(workload: str, scale: float) -> str:
    """Of the predicted harm at every site, by the content hash of the workload."""
    return key_of(("profile", workload, scale, TOKENS, DRAWS))


def channels_key(workload: str, layers: Sequence[str]) -> str:
    """Of the channel statistics, by the content hash of the calibration workload."""
    return key_of(("channels", workload, tuple(layers), TOKENS))


def weights_key(workload: str, form: WeightFormat, draws: int, paths: Sequence[str]) -> str:
    """Of the predicted harm of weights in a format, by the content hash of the workload."""
    return key_of(("weights", workload, form, draws, tuple(paths), TOKENS))

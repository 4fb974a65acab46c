"""What two checkpoints of one architecture share: the class of the model, and the names and shapes of its weights.

Neither values nor dtypes are looked at.
"""

from __future__ import annotations

import hashlib
import json

from torch import nn


def architecture_of(model: nn.Module) -> str:
    """The class with a hash of the names and shapes of all weights."""
    whole = getattr(model, "_orig_mod", model)
    shapes = sorted((name, list(weight.shape)) for name, weight in whole.named_parameters())
    mark = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:12]
    return f"{type(whole).__name__} {mark}"

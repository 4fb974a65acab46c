"""Works out the layout of a model: its layers, what it writes out by hand, and what to pass over."""

from __future__ import annotations

from torch import nn

from noisescope.core.layout import Layout
from noisescope.model.layers import find_layers
from noisescope.model.written import find_written_out

# Classes by name, so that nothing of a model library is imported: subclasses count as well.
LINEAR_CLASSES = ("Conv1D",)
# Their products turn positions into angles and see no activation.
PASSED_OVER_ENDINGS = ("RotaryEmbedding", "RotaryPositionalEmbedding")


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model as it is now."""
    return Layout(
        layers=find_layers(model),
        written_out=find_written_out(model),
        linear=_paths(model, lambda name: name in LINEAR_CLASSES),
        passed_over=_paths(model, lambda name: name.endswith(PASSED_OVER_ENDINGS)),
    )


def _paths(model: nn.Module, fits: object) -> tuple[str, ...]:
    return tuple(
        path
        for path, m in model.named_modules()
        if any(fits(c.__name__) for c in type(m).__mro__)  # type: ignore[operator]
    )

"""Outlier channels of a model's linear layers under the names that users of the verl fork know.

The measuring and the judging are in `noisescope.measure`; this keeps no activations and changes no output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Self

from torch import nn

from noisescope.measure.observer import SIDES, ChannelObserver
from noisescope.measure.outliers import ChannelOutliers, OutlierRules, find_outliers


class ActivationCapture:
    """Channel statistics of the linear layers that the patterns name, while its hooks are registered.

    Patterns are names such as `o_proj`, globs such as `layers.3.*`, or regular expressions; without any, `o_proj`,
    `down_proj` and `gate_proj`. Memory does not grow with the number of batches. Also a context manager.
    """

    def __init__(
        self, model: nn.Module, layer_patterns: str | Sequence[str] | None = None, *, delimiters: Collection[int] = ()
    ) -> None:
        self.observer = ChannelObserver(model, layer_patterns, sides=SIDES, delimiters=delimiters)

    def register_hooks(self) -> int:
        """Begin to watch; returns how many modules are watched. Again after `remove_hooks` to add to what was seen."""
        self.observer.attach()
        return len(self.observer.sites)

    def remove_hooks(self) -> None:
        """Stop watching; what was seen stays."""
        self.observer.detach()

    def reset(self) -> None:
        """Forget what was seen."""
        self.observer.reset()

    def detect_outliers(self, threshold: float = 10.0) -> dict[str, dict[str, Any]]:
        """The outlier channels of each layer's output by module path, those of its input under its key 'input'.

        A channel is an outlier if its largest |value| is more than `threshold` times the median channel's.
        """
        rules = OutlierRules(ratio=threshold)
        found: dict[str, dict[str, Any]] = {}
        inputs: dict[str, dict[str, Any]] = {}
        for summary in self.observer.summaries():
            chosen = found if summary.side == "output" else inputs
            chosen[summary.path] = _plain(find_outliers(summary, rules))
        return {path: {**outliers, "input": inputs.get(path)} for path, outliers in found.items()}

    def __enter__(self) -> Self:
        self.register_hooks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove_hooks()


def _plain(outliers: ChannelOutliers) -> dict[str, Any]:
    return {
        "outlier_indices": list(outliers.indices),
        "num_outliers": len(outliers.indices),
        "outlier_ratios": list(outliers.ratios),
        "max_ratio": outliers.max_ratio,
        "median_peak": outliers.median_peak,
        "num_channels": outliers.channels,
        "percentage": outliers.percentage,
        "severity": outliers.severity,
        "places": list(outliers.places),
        "peak_positions": list(outliers.peak_positions),
        "peak_tokens": list(outliers.peak_tokens),
        "spread_outliers": list(outliers.by_spread),
        "spread_ratios": list(outliers.spreads),
        "non_finite_channels": list(outliers.non_finite),
        "sparsity": outliers.sparsity,
    }

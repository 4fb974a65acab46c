"""The record of a smoothed model: which factors went where, and what int8 costs without and with them.

It holds no factors and no weights; those are in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

TENSOR, TOKEN = "tensor", "token"
ACTIVATIONS = (TENSOR, TOKEN)


@dataclass(frozen=True)
class Smoothed:
    """One fold: from a writer into its readers, in a layer as in a Site.

    `alpha` None is a fold that was left alone, and `why` says why. Errors are those of the readers' outputs in int8, as
    a share of what they give; `after` is that at the best alpha. `ratio` is the largest input channel over the median
    one, without and with the factors of that alpha.
    """

    layer: int | None
    writer: str
    readers: tuple[str, ...]
    alpha: float | None
    before: float
    after: float
    ratio: tuple[float, float]
    why: str = ""


@dataclass(frozen=True)
class Cost:
    """A harm with its interval over samples."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Smoothing:
    """What was folded, and what all linear layers in int8 cost then.

    `alpha` None is one that was searched for each fold. `activations` says what shares a scale: a tensor, by a scale
    that is fixed beforehand, or each token. `change` is after - before on the same samples. `moved` is the largest
    change of an answer by the folds themselves, as a share of the largest answer.
    """

    alpha: float | None
    activations: str
    metric: str
    folds: tuple[Smoothed, ...]
    without: tuple[str, ...]
    before: Cost
    after: Cost
    change: Cost
    samples: int
    seen: int
    linears: int
    moved: float
    remark: str = ""
    confidence: float = 0.95

    @property
    def folded(self) -> tuple[Smoothed, ...]:
        """What was folded."""
        return tuple(fold for fold in self.folds if fold.alpha is not None)

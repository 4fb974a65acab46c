"""What a corruption kind may know of the operator call whose output it changes, besides that output.

It does not find out which call that is and it draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from noisescope.inject.keyed import Draw


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix product that can be computed again: `left` @ `right`, then plus `bias`."""

    left: Tensor
    right: Tensor
    bias: Tensor | None = None

    @classmethod
    def of_linear(cls, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Self:
        """The product inside `torch.nn.functional.linear`."""
        return cls(x, weight.mT if weight.dim() > 1 else weight, bias)

    @classmethod
    def of_matmul(cls, a: Tensor, b: Tensor) -> Self:
        """The product inside `torch.matmul` or `torch.bmm`, vectors included."""
        return cls(a, b)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Partial products in float32, `size` terms of the contraction in each; the bias comes last."""
        for start in range(0, max(self.left.shape[-1], 1), size):
            terms = slice(start, start + size)
            right = self.right[..., terms, :] if self.right.dim() > 1 else self.right[terms]
            yield self.left[..., terms].float() @ right.float()
        if self.bias is not None:
            yield self.bias.float()


@dataclass(frozen=True)
class Call:
    """One operator call: `fresh` differs from run to run, `fixed` is the same in every run at this site.

    `product` is there for matrix products only.
    """

    fresh: Draw
    fixed: Draw
    product: Product | None = None


Kind = Callable[[Tensor, float, Call, Mapping[str, Any]], Tensor]

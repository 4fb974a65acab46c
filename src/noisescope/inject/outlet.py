"""The two points where autograd is met: gradients that leave an operator, and outputs that autograd still needs.

A corruption has no derivative: hardware error is not a function of the weights, so gradients pass straight through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


def outlet(operand: Tensor, change: Change) -> Tensor:
    """The operand, so that the gradient that this one operator call sends back to it is changed.

    A view is its own node in the graph: unlike the operand itself it has a single consumer, and unlike a function of
    our own it may be written in place.
    """
    view = operand.view_as(operand)
    # A gradient that autograd may differentiate again must not be written into.
    view.register_hook(lambda grad: change(grad.clone() if grad.requires_grad else grad))
    return view


class StraightThrough(torch.autograd.Function):
    """A change of an output that its own backward must not see."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, change: Change) -> Tensor:
        """The changed copy."""
        return change(output.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient as it came."""
        return (*grads, None)

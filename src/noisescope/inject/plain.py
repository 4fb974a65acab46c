"""Tells tensors that are memory from tensors that only stand for something: subclasses, transforms, fakes."""

from __future__ import annotations

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import Parameter


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is memory that can be read and written: no subclass, and no stand-in of a transform."""
    if type(tensor) not in (Tensor, Parameter) or tensor.device.type == "meta":
        return False
    return not is_functorch_wrapped_tensor(tensor)

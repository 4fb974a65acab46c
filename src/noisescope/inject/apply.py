"""Puts the corruptions of a plan on a tensor and tells the tally what became of it.

The tensor may be written in place; whether that is safe for autograd is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from noisescope.core.errors import NoisescopeError
from noisescope.inject import gpu, native
from noisescope.inject.active import Charge
from noisescope.inject.keyed import Draw, takes_kernel
from noisescope.inject.keys import mix
from noisescope.inject.kinds import Call, Product
from noisescope.inject.landing import corrupt
from noisescope.inject.plain import is_plain
from noisescope.inject.tally import measure

# Above this strength float32 keeps relative noise as asked; below it, it is landed on the grid like in short formats.
_RESOLVED = 64 * torch.finfo(torch.float32).eps
_KERNEL: dict[str, tuple[native.Shape, bool]] = {
    "relative_gaussian": ("gaussian", True),
    "absolute_gaussian": ("gaussian", False),
    "relative_uniform": ("uniform", True),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """Which call of an operator this is.

    `numbers` holds the pass for each charge, `counts` how many injections the call stands for: 0 where it repeats a
    call that was counted, in a recomputation or for a further operand.
    """

    phase: str
    numbers: tuple[int, ...]
    ordinal: int
    operand: int = 0
    counts: int = 1
    product: Callable[[], Product | None] | None = None


def apply(tensor: Tensor, charges: tuple[Charge, ...], moment: Moment) -> Tensor:
    """The tensor after all charges, changed in place."""
    for charge, number in zip(charges, moment.numbers, strict=True):
        charge.active.stats.count(charge.site, moment.phase, moment.counts, _reached(tensor, charge))
        if charge.strength and tensor.is_floating_point() and tensor.numel():
            _check_plain(tensor, charge)
            _apply_one(tensor, charge, number, moment)
    return tensor


def _reached(tensor: Tensor, charge: Charge) -> int:
    """How many values a corruption reaches, on average where they are drawn."""
    params = charge.active.injection.corruption.spec_params
    channels, share = params["channels"], params["fraction"]
    if channels is not None and tensor.dim() and tensor.shape[-1]:
        share *= len(set(channels)) / tensor.shape[-1]
    reached: int = round(tensor.numel() * share)
    return reached


def _check_plain(tensor: Tensor, charge: Charge) -> None:
    if not is_plain(tensor):
        raise NoisescopeError(
            f"{charge.site.operator} at {charge.site.path or 'the model'} gives a {type(tensor).__name__} that is no "
            "plain tensor in memory (a sharded, nested, fake or transformed one): noise cannot be put there. Leave "
            "this operator or layer out, or run the model without that wrapper or transform."
        )


def _apply_one(tensor: Tensor, charge: Charge, number: int, moment: Moment) -> None:
    corruption, stats = charge.active.injection.corruption, charge.active.stats
    key = charge.call_key(number, moment.ordinal, moment.operand)
    shape = _KERNEL.get(corruption.kind)
    if shape and not corruption.params and takes_kernel(tensor) and _kernel_fits(tensor, charge.strength, shape[1]):
        if tensor.is_cpu:
            stats.landed(charge.site, moment.phase, native.perturb_(tensor, key, charge.strength, *shape))
        else:
            plain = tensor.dtype is torch.float32 and shape[1] and charge.strength >= _RESOLVED
            sums = stats.sums(charge.site, moment.phase, tensor.device)
            gpu.perturb_(tensor, key, charge.strength, gpu.Manner(*shape, plain), sums)
        return
    # A stuck part of the machine is the same part in every pass and every call.
    fixed = Draw(mix(charge.key, moment.operand))
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        product = moment.product() if moment.product is not None else None
        before = tensor.detach()
        after = corrupt(before, corruption, charge.strength, Call(Draw(key), fixed, product))
        stats.sums(charge.site, moment.phase, tensor.device).add_(measure(before, after))
        # Not `detach`: it shares the version counter, and autograd would take the change for the user's mistake.
        tensor.data.copy_(after)


def _kernel_fits(tensor: Tensor, strength: float, relative: bool) -> bool:
    if tensor.is_cuda:
        return gpu.takes(tensor)
    if tensor.dtype is torch.bfloat16 or not tensor.is_contiguous():
        return tensor.is_contiguous()
    # In float32 the kernel rounds to nearest, which keeps noise only where it is well above the values' last bit.
    largest = 1.0 if relative else float(tensor.detach().abs().amax())
    return tensor.dtype is torch.float32 and strength >= _RESOLVED * largest

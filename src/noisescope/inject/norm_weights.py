"""Channel-wise Gaussian noise on the weights of norms while a model learns: (Z + w) * x / rms(x), Z ~ N(0, s^2).

As in quantization-aware RL (Huang et al. 2025, "QeRL", section 3.3), with one difference: w + Z is held in float32 and
the norm is computed there, because on a bfloat16 weight near 1 most of the noise would be rounded away. The weights
themselves are never written, so nothing adds up and nothing has to be taken back. It does not find norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from noisescope.core.errors import BadInputError, NeverFiredError, NoEffectError
from noisescope.core.records import Site
from noisescope.inject.keyed import Draw
from noisescope.inject.keys import mix, site_key
from noisescope.inject.tally import Tally, measure
from noisescope.inject.where import first_tensor, in_backward

NAME = "norm weight"
_HELD = ("weight", "bias")
Call = tuple[tuple[Any, ...], dict[str, Any]]
Weights = Mapping[str, Any]
Run = tuple[Call, Weights]


class NormNoise:
    """Noise on the weights of some norms of a model, by their sites; on from `start` to `stop`.

    The noise is a function of seed and site: all passes between a start and a stop share it, and so does a recomputed
    one. Passes that were begun without gradients stay clean.
    """

    def __init__(self, model: nn.Module, norms: Mapping[Site, nn.Module]) -> None:
        if not norms:
            raise BadInputError("noise on norm weights: no norm with a weight was found in the selected layers.")
        self.stats = Tally()
        self._model, self._norms = model, norms
        self._scale, self._seed = 0.0, 0
        self._learning: bool | None = None
        self._handles: list[RemovableHandle] = []
        self._held: dict[Site, tuple[Weights, torch.dtype]] = {}
        self._seen: set[Site] = set()

    def start(self, scale: float, seed: int) -> None:
        """Noise of this scale from now on."""
        self.stop()
        if not scale:
            return
        self._scale, self._seed = scale, seed
        self._handles = [
            self._model.register_forward_pre_hook(self._begin),
            self._model.register_forward_hook(self._end, always_call=True),
        ]
        for site, norm in self._norms.items():
            before, after = self._around(site)
            self._handles.append(norm.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(norm.register_forward_hook(after, always_call=True))

    def stop(self) -> None:
        """No noise from now on; nothing of it is left on the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()
        self._learning = None

    def verify(self) -> None:
        """Raise if noise was asked for and no norm ran with it, or no output of a norm changed."""
        reached = self.stats.by_site()
        if not reached:
            raise NeverFiredError(
                f"noise on the weights of {len(self._norms)} norms was asked for, and none of them ran in a pass with "
                "gradients."
            )
        if not self.stats.changed:
            raise NoEffectError(
                f"noise of scale {self._scale:g} on norm weights changed none of the {self.stats.elements} outputs "
                "that were compared: it lies below what their number format resolves. Use a larger scale."
            )

    def _begin(self, _: nn.Module, __: Any) -> None:
        self._learning = torch.is_grad_enabled()

    def _end(self, _: nn.Module, __: Any, ___: Any) -> None:
        self._learning = None

    def _is_awake(self) -> bool:
        """Whether this pass learns: a checkpoint switches gradients off inside one that does."""
        return in_backward() or (torch.is_grad_enabled() if self._learning is None else self._learning)

    def _around(self, site: Site) -> tuple[Any, Any]:
        def before(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
            return self._exchange(site, norm, (args, kwargs)) if self._is_awake() else None

        def after(norm: nn.Module, _: Any, out: Any) -> Any:
            return self._restore(site, norm, out)

        return before, after

    def _exchange(self, site: Site, norm: nn.Module, call: Call) -> Call:
        held = {name: value for name in _HELD if (value := norm._parameters.get(name)) is not None}
        wide = torch.promote_types(held["weight"].dtype, torch.float32)
        draw = Draw(mix(site_key(NAME, site.path), self._seed)).normal(held["weight"])
        noisy: dict[str, Any] = {name: value.to(wide) for name, value in held.items()}
        noisy["weight"] = noisy["weight"] + self._scale * draw.to(wide)
        x = first_tensor(*call)
        if x is None:
            raise BadInputError(f"noise on the weight of {site.path}: this norm is called without a tensor.")
        widened = _widened(call)
        if site not in self._seen and not in_backward():
            self._seen.add(site)
            self._compare(site, norm, (call, held), (widened, noisy))
        self._held[site] = held, torch.promote_types(x.dtype, held["weight"].dtype)
        norm._parameters.update(noisy)
        return widened

    def _restore(self, site: Site, norm: nn.Module, out: Any) -> Any:
        held, dtype = self._held.pop(site, (None, None))
        if held is None:
            return None
        norm._parameters.update(held)
        return out.to(dtype) if isinstance(out, Tensor) else None

    def _compare(self, site: Site, norm: nn.Module, clean: Run, noisy: Run) -> None:
        """Count what the noise changes in one output of the norm, out of sight of all that watches operators.

        How far is measured before the last rounding, which turns many small errors into few large ones; how many
        values change, after it.
        """
        wide = {name: value.to(noisy[1][name].dtype) for name, value in clean[1].items()}
        with torch.no_grad(), torch._C.DisableTorchFunction():
            dtype = _forward(norm, *clean).dtype
            before, after = _forward(norm, noisy[0], wide), _forward(norm, *noisy)
            norm._parameters.update(clean[1])
        seen = measure(before, after)
        seen[1] = measure(before.to(dtype), after.to(dtype))[1]
        self.stats.count(site, "forward", 1, before.numel())
        self.stats.sums(site, "forward", before.device).add_(seen)


def _forward(norm: nn.Module, call: Call, weights: Weights) -> Tensor:
    norm._parameters.update(weights)
    out: Tensor = norm.forward(*call[0], **call[1])
    return out


def _widened(call: Call) -> Call:
    """The same call in float32 or wider."""

    def widen(value: Any) -> Any:
        is_short = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(torch.promote_types(value.dtype, torch.float32)) if is_short else value

    return tuple(map(widen, call[0])), {name: widen(value) for name, value in call[1].items()}

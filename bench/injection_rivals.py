"""Measures another injector beside ours, on the outputs of all 57 linear layers, inside that tool's environment.

Usage: python bench/injection_rivals.py {pytorchfi,mrfi} [--rounds N]

Both get the same noise, written by us, since neither has one that is relative to the value. Prints CPU seconds as JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable

import torch
from measuring import Variant, measure, qwen, tokens
from torch import Tensor, nn

import noisescope as ns

SCALE = 0.05


def disturbed(x: Tensor) -> Tensor:
    """The cheapest way to write it in ATen."""
    return torch.addcmul(x, torch.randn_like(x), x, value=SCALE)


class FromFloats(nn.Module):
    """PyTorchFI looks at a model by giving it random floats, which is no token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        ids = x.abs().long().clamp(max=4095) if x.is_floating_point() else x
        return self.model(ids.reshape(-1, ids.shape[-1])).logits


def with_pytorchfi(model: nn.Module, ids: Tensor) -> Callable[[], object]:
    """A copy of the model with a hook on each layer."""
    from pytorchfi.core import fault_injection

    injector = fault_injection(FromFloats(model), 4, input_shape=[128], layer_types=[nn.Linear])
    noisy = injector.declare_neuron_fi(function=lambda module, inputs, output: disturbed(output))
    return lambda: noisy(ids)


def with_mrfi(model: nn.Module, ids: Tensor) -> Callable[[], object]:
    """A copy of the model with two hooks on each module."""
    from mrfi import MRFI, EasyConfig, add_function

    add_function("relative", disturbed)
    config = EasyConfig()
    config.faultinject.append(
        {"type": "activation_out", "error_mode": {"method": "relative"}, "module_type": ["Linear"]}
    )
    noisy = MRFI(copy.deepcopy(model), config)
    return lambda: noisy(ids)


def main() -> None:
    """Print the seconds of all variants."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    makers = {"pytorchfi": with_pytorchfi, "mrfi": with_mrfi}
    parser.add_argument("tool", choices=makers)
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, ids = qwen(8, 256), tokens(4, 128)
    with torch.no_grad():
        theirs = makers[asked.tool](model, ids)
        clean = model(ids).logits
        out = theirs()
        moved = (getattr(out, "logits", out) - clean).abs().max()
        assert moved > 0.01, "nothing was disturbed"
        noise = ns.noise(scale=SCALE)
        variants = [
            Variant("clean", lambda: model(ids)),
            Variant("noisescope", lambda: model(ids), lambda: ns.inject(model, noise, operators="linear")),
            Variant(asked.tool, theirs),
        ]
        print(json.dumps(measure(variants, asked.rounds)))


if __name__ == "__main__":
    main()

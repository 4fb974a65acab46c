"""Finds the stack of layers of a model: by the paths that model families use, else by structure."""

from __future__ import annotations

from torch import nn

# The places where model families keep their blocks, relative to any prefix. Order does not matter.
KNOWN_STACKS = (
    "model.layers",
    "model.decoder.layers",
    "model.encoder.layers",
    "transformer.h",
    "gpt_neox.layers",
    "encoder.layer",
    "encoder.layers",
    "decoder.layers",
    "encoder.block",
    "decoder.block",
    "transformer.blocks",
    "transformer.layers",
    "layers",
    "blocks",
    "h",
)
# A stack that holds less than this share of the largest one is something else: a list of heads, say.
_SHARE = 0.2


def find_layers(model: nn.Module) -> tuple[str, ...]:
    """Paths of the layers in order of execution as registered; empty if the model has no stack.

    A model of two stacks, an encoder and a decoder, counts on through the second.
    """
    stacks = [(path, module) for path, module in model.named_modules() if _is_stack(module)]
    outer = [(p, m) for p, m in stacks if not any(p.startswith(f"{q}.") for q, _ in stacks if q != p)]
    known = [(p, m) for p, m in outer if any(p == k or p.endswith(f".{k}") for k in KNOWN_STACKS)]
    chosen = known or outer
    if not chosen:
        return ()
    sizes = {path: sum(w.numel() for w in module.parameters()) for path, module in chosen}
    least = _SHARE * max(sizes.values())
    return tuple(f"{p}.{name}" if p else name for p, m in chosen if sizes[p] >= least for name, _ in m.named_children())


def _is_stack(module: nn.Module) -> bool:
    children = list(module.children())
    if isinstance(module, nn.ModuleList):
        return bool(children)
    alike = len({type(child) for child in children}) == 1
    return isinstance(module, nn.Sequential) and len(children) > 1 and alike and any(children[0].children())

"""A CPU as a platform of verl, which ships none: loaded by VERL_USE_EXTERNAL_MODULES, chosen by VERL_PLATFORM=cpu."""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

DEVICE = types.ModuleType("cpu_device")
DEVICE.__dict__.update(
    {name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")},
    **{name: lambda *_: 0 for name in ("memory_allocated", "memory_reserved", "max_memory_allocated")},
    max_memory_reserved=lambda *_: 0,
    mem_get_info=lambda *_: (1 << 30, 1 << 30),
    empty_cache=lambda: None,
    get_device_name=lambda *_: "CPU",
    set_device=lambda _: None,
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
)


def _answer(value: Any) -> Any:
    return lambda *_, **__: value


# Whatever is not named here is asked of accelerators alone.
ANSWERS = {
    "device_name": property(_answer("cpu")),
    "vendor_name": property(_answer("none")),
    "device_module": property(_answer(DEVICE)),
    "is_available": _answer(True),
    "current_device": _answer("cpu"),
    "device_count": _answer(1),
    "communication_backend_name": _answer("gloo"),
    "visible_devices_envvar": _answer("NO_DEVICES"),
    "nvtx_range": _answer(nullcontext()),
    "ray_resource_name": _answer("CPU"),
    "ray_noset_envvars": _answer([]),
    "get_device_capability": _answer((None, None)),
    "manual_seed": lambda _, seed: torch.manual_seed(seed),
    "manual_seed_all": lambda _, seed: torch.manual_seed(seed),
    "is_ipc_supported": _answer(False),
}
missing = {name: _answer(None) for name in PlatformBase.__abstractmethods__ - set(ANSWERS)}
PlatformRegistry.register(platform="cpu")(type("PlatformCPU", (PlatformBase,), {**ANSWERS, **missing}))

"""noisescope: an instrument for the numerics of language models.

It perturbs a running model in chosen places and reads from the response which operators and layers are fragile.
Names load on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from noisescope.core import version

if TYPE_CHECKING:
    from noisescope.core.errors import NoisescopeError as NoisescopeError
    from noisescope.core.records import Corruption as Corruption
    from noisescope.core.records import Site as Site
    from noisescope.core.records import fault as fault
    from noisescope.core.records import noise as noise
    from noisescope.runs.capturing import capture as capture
    from noisescope.runs.comparing import compare as compare
    from noisescope.runs.diagnosing import diagnose as diagnose
    from noisescope.runs.localising import locate as locate
    from noisescope.sweep.injecting import inject as inject
    from noisescope.sweep.injecting import sites as sites
    from noisescope.sweep.screening import screen as screen
    from noisescope.sweep.subject import load as load

__version__ = version.VERSION

_HOME = {
    "Corruption": "noisescope.core.records",
    "NoisescopeError": "noisescope.core.errors",
    "Site": "noisescope.core.records",
    "capture": "noisescope.runs.capturing",
    "compare": "noisescope.runs.comparing",
    "diagnose": "noisescope.runs.diagnosing",
    "fault": "noisescope.core.records",
    "inject": "noisescope.sweep.injecting",
    "load": "noisescope.sweep.subject",
    "locate": "noisescope.runs.localising",
    "noise": "noisescope.core.records",
    "screen": "noisescope.sweep.screening",
    "sites": "noisescope.sweep.injecting",
}
__all__ = [
    "Corruption",
    "NoisescopeError",
    "Site",
    "__version__",
    "capture",
    "compare",
    "diagnose",
    "fault",
    "inject",
    "load",
    "locate",
    "noise",
    "screen",
    "sites",
]


class _CallableRoom(ModuleType):
    """A room that is also a public function: `noisescope.inject(...)` calls, `import noisescope.inject.ops` imports."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _public(self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(ModuleType):
    """The package. The import system binds each room here when it is first imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME and type(value) is ModuleType:
            value.__class__ = _CallableRoom
        super().__setattr__(name, value)


def _public(name: str) -> Any:
    return getattr(import_module(_HOME[name]), name)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'noisescope' has no attribute {name!r}")
    value = _public(name)
    # Where the room of that name was bound by the import, the room is the function.
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Package

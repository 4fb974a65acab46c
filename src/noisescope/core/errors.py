"""The errors that noisescope raises on purpose: each says what was seen, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from noisescope.core.foreign import clean, shorten

_LONGEST = 2000


class NoisescopeError(Exception):
    """Base of every error that is an answer to the user and not a bug of ours. It is one line, whatever it quotes."""

    def __str__(self) -> str:
        return shorten(clean(super().__str__()), _LONGEST)


class BadInputError(NoisescopeError, ValueError):
    """A value that was passed in is not one that can be worked with."""


class LayersNotFoundError(NoisescopeError):
    """The stack of layers of a model could not be found, and the question needs it."""


class NeverFiredError(NoisescopeError):
    """Something was selected for injection and no call of it was ever reached."""


class NoEffectError(NoisescopeError):
    """Injections were made and not one value changed."""


class CannotCompileError(NoisescopeError):
    """This injection cannot be traced into a compiled model."""


class SelfCheckError(NoisescopeError):
    """A model does not behave under injection as every model must, so nothing measured on it would be true."""


class LoadError(NoisescopeError):
    """A model or one of its files could not be read."""


def unknown_name(what: str, seen: object, accepted: Collection[str]) -> BadInputError:
    """An error for a name outside a closed list, with the nearest accepted name."""
    near = difflib.get_close_matches(str(seen).lower(), list(accepted), n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return BadInputError(f"unknown {what} {seen!r}; accepted: {', '.join(sorted(accepted))}.{hint}")

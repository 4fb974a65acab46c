"""Records to JSON and back, and the content hash that names a trial. Files are other rooms' business."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from typing import Any, TypeVar

from noisescope.core.errors import BadInputError

SCHEMA = 1
R = TypeVar("R")


def to_plain(record: Any) -> Any:
    """A record as dicts, lists and scalars."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_plain(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, tuple | list):
        return [to_plain(item) for item in record]
    return record


def encode(record: Any) -> str:
    """One line of JSON with sorted keys: equal records give equal text."""
    return json.dumps(to_plain(record), sort_keys=True, allow_nan=False, separators=(",", ":"))


def key_of(record: Any) -> str:
    """The content hash of a record; it changes with SCHEMA."""
    return hashlib.sha256(f"{SCHEMA}:{encode(record)}".encode()).hexdigest()[:32]


def decode(kind: type[R], text: str) -> R:
    """The record of the given kind that `encode` wrote; anything else is refused by name."""
    try:
        plain = json.loads(text)
    except ValueError as problem:
        raise BadInputError(f"not JSON ({problem}); expected one encoded {kind.__name__}.") from None
    return typing.cast(R, from_plain(kind, plain))


def from_plain(kind: Any, plain: Any) -> Any:
    """The value of a declared type from what `to_plain` made of it."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, plain)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if plain is None else from_plain(next(a for a in args if a is not type(None)), plain)
    if origin is tuple:
        return _tuple(args, plain)
    if kind is Any:
        return tuple(plain) if isinstance(plain, list) else plain
    return _scalar(kind, plain)


def _tuple(args: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise BadInputError(f"{plain!r}: expected a list.")
    inner = [args[0]] * len(plain) if args[-1] is Ellipsis else list(args)
    if len(inner) != len(plain):
        raise BadInputError(f"{plain!r}: expected a list of {len(inner)}.")
    return tuple(from_plain(a, p) for a, p in zip(inner, plain, strict=True))


def _scalar(kind: type, plain: Any) -> Any:
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise BadInputError(f"{plain!r}: expected {kind.__name__}.")
    return plain


def _record(kind: type, plain: Any) -> Any:
    if not isinstance(plain, dict):
        raise BadInputError(f"{plain!r}: expected the fields of {kind.__name__}.")
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    strange = sorted(set(plain) - set(names))
    if strange:
        raise BadInputError(f"{kind.__name__} has no field {', '.join(strange)}; it has {', '.join(names)}.")
    missing = sorted(set(names) - set(plain))
    if missing:
        raise BadInputError(f"{kind.__name__} lacks {', '.join(missing)}.")
    return kind(**{name: from_plain(hints[name], plain[name]) for name in names})

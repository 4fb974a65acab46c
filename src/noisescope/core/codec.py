"""Records to JSON and back, and the content hash that names a trial. Files are other rooms' business."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from typing import Any, TypeVar

from noisescope.core.errors import BadInputError

SCHEMA = 1
R = TypeVar("R")
# Metadata of a field that came later: at its default it is not written, so that records keep their text and their key.
LATER = types.MappingProxyType({"later": True})
# JSON has no numbers for these; in a place declared float, or free, the word stands for the number.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(record: Any) -> Any:
    """A record as dicts, lists and scalars."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        fields = [f for f in dataclasses.fields(record) if not _is_unsaid(f, record)]
        return {f.name: to_plain(getattr(record, f.name)) for f in fields}
    if isinstance(record, tuple | list):
        return [to_plain(item) for item in record]
    if isinstance(record, float) and not math.isfinite(record):
        return str(record)
    return record


def _is_unsaid(own: dataclasses.Field[Any], record: Any) -> bool:
    return "later" in own.metadata and getattr(record, own.name) == own.default


def encode(record: Any) -> str:
    """One line of JSON with sorted keys: equal records give equal text."""
    return json.dumps(to_plain(record), sort_keys=True, allow_nan=False, separators=(",", ":"))


def key_of(record: Any) -> str:
    """The content hash of a record; it changes with SCHEMA."""
    return hashlib.sha256(f"{SCHEMA}:{encode(record)}".encode()).hexdigest()[:32]


def decode(kind: type[R], text: str) -> R:
    """The record of the given kind that `encode` wrote; anything else is refused by name."""
    try:
        plain = parse(text)
    except ValueError as problem:
        raise BadInputError(f"not JSON ({problem}); expected one encoded {kind.__name__}.") from None
    return typing.cast(R, from_plain(kind, plain))


def parse(text: str) -> Any:
    """What strict JSON says; anything else is a ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def from_plain(kind: Any, plain: Any) -> Any:
    """The value of a declared type from what `to_plain` made of it."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, plain)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if plain is None else from_plain(next(a for a in args if a is not type(None)), plain)
    if origin is tuple:
        return _tuple(args, plain)
    if origin is typing.Literal:
        return _choice(args, plain)
    if kind is Any:
        return _free(plain)
    return _float(plain) if kind is float else _scalar(kind, plain)


def _free(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_free(item) for item in plain)
    return _NOT_FINITE.get(plain, plain) if isinstance(plain, str) else plain


def _tuple(args: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise BadInputError(f"{plain!r}: expected a list.")
    if args == (float, ...) and all(type(p) is float and math.isfinite(p) for p in plain):
        return tuple(plain)  # the values of a reading are most of what is ever read
    inner = [args[0]] * len(plain) if args[-1] is Ellipsis else list(args)
    if len(inner) != len(plain):
        raise BadInputError(f"{plain!r}: expected a list of {len(inner)}.")
    return tuple(from_plain(a, p) for a, p in zip(inner, plain, strict=True))


def _choice(args: tuple[Any, ...], plain: Any) -> Any:
    # By type as well, because True is equal to 1.
    if not any(type(plain) is type(choice) and plain == choice for choice in args):
        raise BadInputError(f"{plain!r}: expected one of {', '.join(map(repr, args))}.")
    return plain


def _float(plain: Any) -> float:
    if isinstance(plain, str) and plain in _NOT_FINITE:
        return _NOT_FINITE[plain]
    if not isinstance(plain, int | float) or isinstance(plain, bool):
        raise BadInputError(f"{plain!r}: expected float.")
    try:
        value = float(plain)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise BadInputError(f"{str(plain)[:20]}...: too large for a float.")
    return value


def _scalar(kind: type, plain: Any) -> Any:
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise BadInputError(f"{plain!r}: expected {kind.__name__}.")
    return plain


def _record(kind: type, plain: Any) -> Any:
    if not isinstance(plain, dict):
        raise BadInputError(f"{plain!r}: expected the fields of {kind.__name__}.")
    hints = _hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    strange = sorted(set(plain) - set(names))
    if strange:
        raise BadInputError(f"{kind.__name__} has no field {', '.join(strange)}; it has {', '.join(names)}.")
    missing = sorted({f.name for f in dataclasses.fields(kind) if "later" not in f.metadata} - set(plain))
    if missing:
        raise BadInputError(f"{kind.__name__} lacks {', '.join(missing)}.")
    return kind(**{name: from_plain(hints[name], plain[name]) for name in names if name in plain})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    # Working them out costs more than all the rest of reading a record.
    return typing.get_type_hints(kind)

"""Reads the records of a view from JSON by their declared types, and writes the same types as a JSON Schema.

It touches no files. It refuses whatever the types do not allow and says where; there is no second list of what a
report may hold, so the schema and the reader cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

from noisescope.core.codec import from_plain
from noisescope.core.errors import BadInputError

R = TypeVar("R")
_PRIMITIVES: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    # JSON has no numbers for the last three.
    float: {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
    type(None): {"type": "null"},
}


def read(kind: type[R], plain: Any) -> R:
    """The record of a declared type from what JSON holds."""
    return typing.cast(R, _read(kind, plain, "$"))


def _read(kind: Any, plain: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, plain, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _read(_branch(args, plain, where), plain, where)
    if origin is typing.Literal:
        if not any(plain is a or (type(plain) is type(a) and plain == a) for a in args):
            raise _wrong(where, plain, f"one of {', '.join(map(repr, args))}")
        return plain
    if origin is tuple:
        if not isinstance(plain, list):
            raise _wrong(where, plain, "a list")
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(plain))
    return _scalar(kind, plain, where)


def _scalar(kind: Any, plain: Any, where: str) -> Any:
    if kind is type(None) and plain is None:
        return None
    try:
        return from_plain(kind, plain)
    except BadInputError:
        raise _wrong(where, plain, kind.__name__) from None


def _branch(args: tuple[Any, ...], plain: Any, where: str) -> Any:
    """The one type of a union that fits: by type for a scalar, by its `kind` or its fields for a record."""
    if plain is None and type(None) in args:
        return type(None)
    records: list[type] = [a for a in args if isinstance(a, type) and dataclasses.is_dataclass(a)]
    if isinstance(plain, dict):
        fitting = [a for a in records if _tag(a) == plain.get("kind") and ("kind" in plain or _names(a) == set(plain))]
    else:
        fitting = [a for a in args if a not in records and a is not type(None)]
    if len(fitting) != 1:
        raise _wrong(where, plain, " or ".join(a.__name__ for a in args))
    return fitting[0]


def _record(kind: type, plain: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise _wrong(where, plain, f"the fields of {kind.__name__}")
    strange, missing = sorted(set(plain) - _names(kind)), sorted(_names(kind) - set(plain))
    if strange or missing:
        what = f"has no field {strange[0]}" if strange else f"lacks {missing[0]}"
        raise BadInputError(f"{where}: {kind.__name__} {what}.")
    hints = hints_of(kind)
    values = {name: _read(hints[name], value, f"{where}.{name}") for name, value in plain.items()}
    return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.init})


def _wrong(where: str, plain: Any, expected: str) -> BadInputError:
    seen = repr(plain)
    return BadInputError(f"{where}: {seen if len(seen) < 60 else seen[:57] + '...'}; expected {expected}.")


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The declared types of a record's fields."""
    return typing.get_type_hints(kind)


@functools.cache
def _names(kind: type) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def _tag(kind: type) -> str | None:
    """The value that tells a block from the others; None for a record that has none."""
    own = next((f for f in dataclasses.fields(kind) if f.name == "kind" and not f.init), None)
    return None if own is None else str(own.default)


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema of a record type, with every record that it reaches under `$defs`."""
    found: dict[str, Any] = {}
    top = _schema(kind, found)
    return {**top, "$defs": {name: found[name] for name in sorted(found)}}


def _schema(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record_schema(kind, found)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(a, found) for a in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], found)}
    return _PRIMITIVES[kind]


def _record_schema(kind: type, found: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in found:
        found[kind.__name__] = {}
        hints = hints_of(kind)
        properties = {f.name: _schema(hints[f.name], found) for f in dataclasses.fields(kind)}
        found[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").split("\n")[0],
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}

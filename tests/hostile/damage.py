"""Damage to files: bytes cut, moved and replaced, and JSON whose shape holds but whose values do not."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from noisescope.core.errors import NoisescopeError
from noisescope.core.foreign import clean

Edit = tuple[Any, ...]
MOST = 500  # ways that the usual tests and the slow ones try
# Offsets are taken modulo the length, so that heads, where most formats keep their meaning, come often.
_where = st.one_of(st.integers(0, 200), st.integers(0, 1 << 20))
_bytes = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(
        [b"\n", b"\0" * 16, b"\xff" * 8, b'"', b"}", b"[" * 3000, b"{", b"9" * 30, b"NaN", b"1e999", b"\xed\xa0"]
    ),
)
_byte_edits = st.one_of(
    st.tuples(st.just("end"), _where),
    st.tuples(st.just("cut"), _where, st.integers(1, 400)),
    st.tuples(st.just("put"), _where, _bytes),
    st.tuples(st.just("over"), _where, _bytes),
    st.tuples(st.just("twice"), _where, st.integers(1, 2000)),
    st.tuples(
        st.just("all"),
        st.sampled_from([b"", b"\0", b"null", b"[]", b"{}", b"GGUF", b"PK\x03\x04", b"\x80\x02.", b"\xef\xbb\xbf{}"]),
    ),
)
byte_edits = st.lists(_byte_edits, min_size=1, max_size=3)
_leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**9, 10**30, -(10**30), 2**63, 1e308, -0.0, 0.5]),
    st.sampled_from(["", "nan", "inf", "x" * 300, "\x1b[31m\n", "\u202e", "../../etc/passwd", "\ud800", "1", "=1+1"]),
)
_value = st.recursive(
    _leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_json_edits = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 1 << 20), _value),
    st.tuples(st.just("drop"), st.integers(0, 1 << 20)),
    st.tuples(st.just("add"), st.integers(0, 1 << 20), _value),
    st.tuples(st.just("swap"), st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
)
json_edits = st.lists(_json_edits, min_size=1, max_size=3)


def broken_bytes(data: bytes, edits: list[Edit]) -> bytes:
    for what, *extra in edits:
        at = extra[0] % (len(data) + 1) if isinstance(extra[0], int) else 0
        if what == "end":
            data = data[:at]
        elif what == "cut":
            data = data[:at] + data[at + extra[1] :]
        elif what == "put":
            data = data[:at] + extra[1] + data[at:]
        elif what == "over":
            data = data[:at] + extra[1] + data[at + len(extra[1]) :]
        elif what == "twice":
            data = data[:at] + data[max(0, at - extra[1]) :]
        else:
            data = extra[0]
    return data


def broken_json(plain: Any, edits: list[Edit]) -> Any:
    """The same document with some of its nodes replaced, removed, added to, or put in each other's place."""
    root = [copy.deepcopy(plain)]
    for what, place, *extra in edits:
        nodes = list(_nodes(root))
        holder, key = nodes[place % len(nodes)]
        if what == "set":
            holder[key] = copy.deepcopy(extra[0])
        elif what == "drop" and holder is not root:
            del holder[key]
        elif what == "add" and isinstance(holder[key], dict):
            holder[key]["surprise"] = extra[0]
        elif what == "add" and isinstance(holder[key], list):
            holder[key].append(extra[0])
        elif what == "swap":
            other, place_there = nodes[extra[0] % len(nodes)]
            holder[key], other[place_there] = copy.deepcopy(other[place_there]), copy.deepcopy(holder[key])
    return root[0]


def _nodes(holder: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _nodes(holder[key])


def changed(data: bytes, way: tuple[str, list[Edit]]) -> bytes:
    """A file with damage of one way or the other."""
    how, edits = way
    return broken_bytes(data, edits) if how == "bytes" else json.dumps(broken_json(json.loads(data), edits)).encode()


BYTES = st.tuples(st.just("bytes"), byte_edits)
EITHER = st.one_of(BYTES, st.tuples(st.just("json"), json_edits))


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextlib.contextmanager
def spoilt(path: Path, data: bytes) -> Iterator[None]:
    """A file with other content for a while."""
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def read_damaged(path: Path, ways: Any, count: int, read: Callable[[], object]) -> int:
    """Damage one file in many ways; reading it works or says in one line why not, and changes nothing."""
    whole, refused = path.read_bytes(), 0

    # Nothing is made smaller: that would read the file hundreds of times more.
    @settings(
        max_examples=count,
        deadline=None,
        # The usual tests try the same ways each time, a search that is asked for tries new ones.
        derandomize=count <= MOST,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(way=ways)
    def check(way: tuple[str, list[Edit]]) -> None:
        nonlocal refused
        with spoilt(path, changed(whole, way)):
            before = content(path.parent)
            try:
                read()
            except NoisescopeError as problem:
                refused += 1
                assert_one_line(str(problem))
            assert content(path.parent) == before

    check()
    return refused


def assert_one_line(said: str) -> None:
    assert said == clean(said) and len(said) <= 2000, said

"""Reads the items that a model is judged on from JSONL of four shapes, checks every line, and names them by content.

It does not tokenise anything, and it does not need torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from noisescope.core.codec import key_of
from noisescope.core.errors import BadInputError, unknown_name

# A line is read into memory whole before it can be judged.
LINE_LIMIT = 1 << 20
SEEN_LENGTH = 80
DEMO_FOLDER = Path(__file__).with_name("demo_data")


@dataclass(frozen=True)
class Question:
    """A question that the model answers in its own words; what counts is the last number of the answer.

    With `ends` it is a whole prompt, shown as it is, and the answer goes up to the first of these texts.
    """

    shape: ClassVar[str] = "question"
    question: str
    answer: str
    kind: str = ""
    ends: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """A prompt and the text that follows it, joined as they are."""

    shape: ClassVar[str] = "completion"
    prompt: str
    completion: str
    kind: str = ""


@dataclass(frozen=True)
class Text:
    """A text, all of which is scored."""

    shape: ClassVar[str] = "text"
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Choice:
    """A prompt, what may follow it, and the index of what should."""

    shape: ClassVar[str] = "choice"
    prompt: str
    choices: tuple[str, ...]
    answer: int
    kind: str = ""


Item = Question | Completion | Text | Choice


@dataclass(frozen=True)
class Workload:
    """Items of one shape. The content hash follows the items alone: not the name, the file or its line ends.

    `repeated` are the lines left out because an earlier line holds the same item: a second copy says nothing new, and
    intervals computed with it would be too narrow.
    """

    name: str
    items: tuple[Item, ...]
    shape: str
    content_hash: str
    repeated: tuple[int, ...] = ()

    @classmethod
    def of(cls, name: str, items: Iterable[Item], repeated: tuple[int, ...] = ()) -> Workload:
        """A workload of these items, in this order."""
        kept = tuple(items)
        shapes = sorted({item.shape for item in kept})
        if len(shapes) != 1:
            raise BadInputError(f"workload {name!r} of {' and '.join(shapes) or 'no'} items: expected one shape.")
        return cls(name, kept, shapes[0], key_of((shapes[0], kept)), repeated)

    def __len__(self) -> int:
        return len(self.items)

    def part(self, start: int = 0, stop: int | None = None) -> tuple[Item, ...]:
        """The items from start to stop, in order; an empty or reversed range is refused."""
        return self.items[slice(*span(self, start, stop))]


class Named(Protocol):
    """Something with a name that has a number of items."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...


def span(of: Named, start: int = 0, stop: int | None = None) -> tuple[int, int]:
    """The range from start to stop, or to the end; an empty, reversed or overlong one is refused."""
    end = len(of) if stop is None else stop
    if not 0 <= start < end <= len(of):
        raise BadInputError(f"items {start} to {end} of {of.name}: it has {len(of)}; expected a range inside.")
    return start, end


def read_workload(path: str | Path, *, limit: int | None = None) -> Workload:
    """The workload in a JSONL file, or the first `limit` items of it; lines behind those are not looked at."""
    file = Path(path).expanduser()
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadInputError(f"limit {limit!r}: expected a number of items >= 1.")
    seen: dict[Item, int] = {}
    repeated: list[int] = []
    for number, line in _lines(file):
        item = _item(file, number, line)
        first = next(iter(seen), item)
        if item.shape != first.shape:
            raise _bad(
                file, number, f"{_fields(item)}, but line {seen[first]} has {_fields(first)}", "one shape a file"
            )
        if item in seen:
            repeated.append(number)
            continue
        seen[item] = number
        if len(seen) == limit:
            break
    if not seen:
        raise BadInputError(f"{file}: no items; expected one JSON object a line, with {ACCEPTED}.")
    return Workload.of(file.stem, seen, tuple(repeated))


def demo_names() -> tuple[str, ...]:
    """The workloads that come with noisescope."""
    return tuple(sorted(file.stem for file in DEMO_FOLDER.glob("*.jsonl")))


def demo_workload(name: str = "choices", *, limit: int | None = None) -> Workload:
    """A workload that comes with noisescope: choices, questions, texts, or calibration."""
    if name not in demo_names():
        raise unknown_name("demo workload", name, demo_names())
    return read_workload(DEMO_FOLDER / f"{name}.jsonl", limit=limit)


# A minus sign behind a digit, a letter or a bracket is an operator or a hyphen.
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212]\$?)?"  # sign
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\w)\.\d+)"  # 1,234.5 or 1234.5 or .5
)


def final_number(text: str) -> Decimal | None:
    """The number after the last '####', or else the last number of the text; None if there is none.

    Thousands may be set off by commas: 1,234.50 is 1234.5.
    """
    marked = _numbers(text.rpartition("####")[2]) if "####" in text else []
    found = marked[:1] or _numbers(text)[-1:]
    return found[0] if found else None


_PLAIN = str.maketrans({",": None, "$": None, "\u2212": "-"})


def _numbers(text: str) -> list[Decimal]:
    return [Decimal(found.group().translate(_PLAIN)) for found in _NUMBER.finditer(text)]


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Every line that holds something, with its number."""
    try:
        with file.open("rb") as source:
            pieces = enumerate(iter(lambda: source.readline(LINE_LIMIT + 1), b""), start=1)
            texts = ((number, _decoded(file, number, line).strip()) for number, line in pieces)
            yield from ((number, text) for number, text in texts if text)
    except OSError as problem:
        raise BadInputError(f"{file}: {problem.strerror}; expected a JSONL file with {ACCEPTED}.") from None


def _decoded(file: Path, number: int, line: bytes) -> str:
    if len(line) > LINE_LIMIT:
        raise _bad(file, number, f"more than {LINE_LIMIT} bytes", "a shorter line, one item each")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        seen = f"byte {line[problem.start]:#04x} at position {problem.start}"
        raise _bad(file, number, seen, "UTF-8; save the file again in that encoding") from None


def _item(file: Path, number: int, line: str) -> Item:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise _bad(file, number, f"{_short(line)} ({problem})", "one JSON object") from None
    if not isinstance(plain, dict):
        raise _bad(file, number, f"a JSON {type(plain).__name__}", f"one JSON object a line, with {ACCEPTED}")
    return item_of(f"{file}, line {number}", plain)


def item_of(place: str, plain: Mapping[str, Any]) -> Item:
    """The item that fields make; `place` is where they stand."""
    present = {name for name in plain if name in KNOWN_FIELDS}
    shape = next((shape for shape, fields in FIELDS.items() if set(fields) == present), None)
    if shape is None:
        raise BadInputError(f"{place}: the fields {', '.join(map(str, plain)) or '(none)'}; expected {ACCEPTED}.")
    try:
        return MAKERS[shape](plain)
    except _UnfitError as problem:
        raise BadInputError(f"{place}: {problem.seen}; expected {problem.expected}.") from None


class _UnfitError(Exception):
    """A value that does not fit its field."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(name)
        self.seen, self.expected = f"{name} {_short(value)}", expected


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SEEN_LENGTH else f"{text[:SEEN_LENGTH]}..."


def _bad(file: Path, number: int, seen: str, expected: str) -> BadInputError:
    return BadInputError(f"{file}, line {number}: {seen}; expected {expected}.")


def _fields(item: Item) -> str:
    return "{" + ", ".join(FIELDS[item.shape]) + "}"


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _UnfitError(name, value, "a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _UnfitError(name, value, "whole characters, not half of a surrogate pair") from None
    return value


def _kind(plain: Mapping[str, Any]) -> str:
    kind = plain.get("kind")
    return _text("kind", kind) if isinstance(kind, str) and kind.strip() else ""


def _question(plain: Mapping[str, Any]) -> Question:
    answer = plain["answer"]
    is_number = isinstance(answer, int | float) and not isinstance(answer, bool)
    # Digits in full: of 1e-05 the last number would be 5.
    written = _text("answer", f"{Decimal(str(answer)):f}" if is_number else answer)
    if final_number(written) is None:
        raise _UnfitError("answer", written, "a number in it, after '####' or as the last one")
    return Question(_text("question", plain["question"]), written, _kind(plain))


def _completion(plain: Mapping[str, Any]) -> Completion:
    return Completion(_text("prompt", plain["prompt"]), _text("completion", plain["completion"]), _kind(plain))


def _whole_text(plain: Mapping[str, Any]) -> Text:
    return Text(_text("text", plain["text"]), _kind(plain))


def _choice(plain: Mapping[str, Any]) -> Choice:
    given, answer = plain["choices"], plain["answer"]
    if not isinstance(given, list) or len(given) < 2:
        raise _UnfitError("choices", given, "a list of two texts or more")
    choices = tuple(_text("choices", choice) for choice in given)
    if len(set(choices)) < len(choices):
        raise _UnfitError("choices", given, "texts that all differ")
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise _UnfitError("answer", answer, f"an index from 0 to {len(choices) - 1}, or one of the choices itself")
    return Choice(_text("prompt", plain["prompt"]), choices, answer, _kind(plain))


FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "question": ("question", "answer"),
        "completion": ("prompt", "completion"),
        "text": ("text",),
        "choice": ("prompt", "choices", "answer"),
    }
)
MAKERS: Mapping[str, Callable[[Mapping[str, Any]], Item]] = MappingProxyType(
    {"question": _question, "completion": _completion, "text": _whole_text, "choice": _choice}
)
# Other fields, such as an id, are passed over; these must make up exactly one shape.
KNOWN_FIELDS = frozenset(name for fields in FIELDS.values() for name in fields)
ACCEPTED = " or ".join("{" + ", ".join(fields) + "}" for fields in FIELDS.values())

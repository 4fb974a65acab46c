"""Makes arithmetic word problems, and texts from a source whose chances are known, for small models to learn.

Training and test are disjoint: no numbers of a test problem occur with its question in training. It tokenises nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from noisescope.core.errors import BadInputError
from noisescope.measure.workload import Item, Question, Text, Workload

NAMES = ("Tom", "Ann", "Bob", "Eve", "Sam", "Kim")
THINGS = ("apples", "books", "coins", "cards", "pens")
MORE = "{name} has {x} {things} and gets {y} more . How many ="
LEFT = "{name} has {x} {things} and loses {y} . How many ="
_LETTERS = tuple("bcdfghklmnprst")
_LIKELY = (0.7, 0.2, 0.1)
_TEXT_LENGTH = 20
TRAIN, TEST, BETWEEN = "train", "test", "between"


@dataclass(frozen=True)
class Split:
    """Items to learn from, items to be judged on, and items for whatever has to be found out before that."""

    train: Workload
    test: Workload
    between: Workload


def vocabulary() -> tuple[str, ...]:
    """Every piece that a generated text is made of, the space before it included."""
    words = f"{MORE} {LEFT}".replace("{", " {").split()
    plain = {word for word in words if not word.startswith("{")}
    pieces = {f" {word}" for word in (*plain, *NAMES, *THINGS)} | {*NAMES, *map(str, range(10)), " "}
    return tuple(sorted(pieces | {f" {letter}" for letter in _LETTERS} | set(_LETTERS)))


def problems(train: int, test: int, between: int, largest: int) -> Split:
    """Sums and differences of numbers up to `largest`, the same ones every time.

    No two items of the test ask for the same numbers: those would be right or wrong together.
    """
    pairs = [(sign, x, y) for sign in (1, -1) for x in range(1, largest + 1) for y in range(1, largest + 1)]
    pairs = [(sign, x, y) for sign, x, y in pairs if sign > 0 or x >= y]
    random.Random(0).shuffle(pairs)  # noqa: S311
    held = test + between
    if 2 * held > len(pairs):
        raise BadInputError(
            f"{held} problems held back of the {len(pairs)} with numbers up to {largest}: expected at most half. Ask "
            "for fewer items."
        )
    told = {
        TEST: _told(TEST, pairs[:test]),
        BETWEEN: _told(BETWEEN, pairs[test:held]),
        TRAIN: _distinct(TRAIN, train, _problem(pairs[held:])),
    }
    return _split("problems", told)


def _told(part: str, pairs: list[Pair]) -> tuple[Item, ...]:
    draw = random.Random(part)  # noqa: S311
    return tuple(_problem([pair])(draw) for pair in pairs)


def texts(train: int, test: int, between: int) -> Split:
    """Texts of a source in which each letter depends on the one before; a fixed table says how."""
    table = random.Random(0)  # noqa: S311
    after = {letter: table.sample(_LETTERS, len(_LIKELY)) for letter in _LETTERS}
    sizes = {TRAIN: train, TEST: test, BETWEEN: between}
    seen: set[Item] = set()
    return _split("texts", {part: _distinct(part, size, _text(after), seen) for part, size in sizes.items()})


Maker = Callable[[random.Random], Item]
Pair = tuple[int, int, int]


def _problem(pairs: list[Pair]) -> Maker:
    def make(draw: random.Random) -> Item:
        sign, x, y = draw.choice(pairs)
        said = (MORE if sign > 0 else LEFT).format(name=draw.choice(NAMES), things=draw.choice(THINGS), x=x, y=y)
        return Question(said, str(x + sign * y), ends=())

    return make


def _text(after: dict[str, list[str]]) -> Maker:
    def make(draw: random.Random) -> Item:
        said = [draw.choice(_LETTERS)]
        while len(said) < _TEXT_LENGTH:
            said += draw.choices(after[said[-1]], _LIKELY)
        return Text(" ".join(said))

    return make


def _distinct(part: str, size: int, make: Maker, seen: set[Item] | None = None) -> tuple[Item, ...]:
    """So many items that all differ, from each other and from those seen."""
    return tuple(_new(part, size, make, set() if seen is None else seen))


def _new(part: str, size: int, make: Maker, seen: set[Item]) -> Iterator[Item]:
    draw = random.Random(part)  # noqa: S311
    tries = 0
    while size:
        item, tries = make(draw), tries + 1
        if tries > 50 * (len(seen) + size + 1):
            raise BadInputError(f"{size} more items for {part}: there are no more that differ; ask for fewer.")
        if item not in seen:
            seen.add(item)
            size -= 1
            yield item


def _split(name: str, parts: dict[str, tuple[Item, ...]]) -> Split:
    made = {part: Workload.of(f"{name}-{part}", items) for part, items in parts.items()}
    return Split(made[TRAIN], made[TEST], made[BETWEEN])


def held_out(workload: Workload, test: int, between: int) -> Split:
    """A part of given items for the test, another between, and the rest to learn from, in a fixed random order."""
    held = test + between
    if len(workload) < 2 * held:
        raise BadInputError(
            f"{workload.name}: {len(workload)} items, of which {test} are for the test and {between} are held back; "
            f"expected at least {2 * held}. Give more items, or ask for fewer with -n."
        )
    items = random.Random(0).sample(workload.items, len(workload))  # noqa: S311
    parts = {TEST: items[:test], BETWEEN: items[test:held], TRAIN: items[held:]}
    return _split(workload.name, {part: tuple(chosen) for part, chosen in parts.items()})


def check_disjoint(split: Split) -> None:
    """Refuse a split in which an item to be judged on was learned."""
    learned = {*split.train.items, *split.between.items}
    both = [item for item in split.test.items if item in learned]
    if both:
        raise BadInputError(
            f"{split.test.name}: {len(both)} of {len(split.test)} items are also in {split.train.name}; what was "
            "learned by heart says nothing of noise. Give items that all differ."
        )


def guessed(workload: Workload) -> float:
    """The share of questions that the most frequent answer of all gets right."""
    answers = [item.answer for item in workload.items if isinstance(item, Question)]
    return max(map(answers.count, set(answers))) / len(answers) if answers else 0.0

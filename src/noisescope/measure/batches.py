"""Turns items into batches of tokens, with padding that changes no value and an order that is always the same.

It runs no model. What is in a batch follows from the items of a slice, the tokenizer and the settings alone, because
noise depends on the shapes of tensors and a trial must be repeatable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from noisescope.core.codec import key_of
from noisescope.core.errors import BadInputError
from noisescope.measure.metrics import Metric, View, metric_for
from noisescope.measure.workload import Choice, Item, Question, Text, Workload, span

# Some chat templates write the date of today, which would make tomorrow's trial another one.
TEMPLATE_DAY = datetime(2024, 7, 26)
DATE_DIRECTIVES = (*"aAbBcdeGHIjmMpSuUVwWxXyY", "-d", "-m")
PLAIN_QUESTION = "Question: {}\nAnswer:"
# There the model goes on to ask a question of its own.
PLAIN_ENDS = ("\nQuestion:",)
POSITION_LIMITS = ("max_position_embeddings", "n_positions", "n_ctx")


@dataclass(frozen=True)
class Settings:
    """How items are laid out. Each of these can change a value, so all are in the key of what is prepared.

    `tokens_per_batch` counts padding and, for generation, prompts only. A text longer than `max_length` tokens is cut;
    any other item that long is refused. `chat` None: questions use the tokenizer's chat template if it has one.
    """

    tokens_per_batch: int = 512
    max_length: int = 1024
    max_new_tokens: int = 256
    chat: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("tokens_per_batch", 1), ("max_length", 2), ("max_new_tokens", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise BadInputError(f"{name} {value!r}: expected a whole number >= {least}.")

    @classmethod
    def of(cls, model: object, **changes: Any) -> Self:
        """Settings with `max_length` no larger than the number of positions that the model has."""
        config: Any = getattr(model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        limits = [getattr(config, name, None) for name in POSITION_LIMITS]
        wanted = cls(**changes)
        least = min([wanted.max_length, *(limit for limit in limits if isinstance(limit, int) and limit > 1)])
        return cls(**{**changes, "max_length": least})


@dataclass(frozen=True)
class Stretch:
    """What is scored as one: a choice of a sample, or all that is scored of it.

    `size` is the length of a choice in bytes, `right` whether it is the right one.
    """

    sample: int
    choice: int = 0
    size: int = 0
    right: bool = False


@dataclass(frozen=True)
class Piece:
    """Where a stretch is in its row: the logits from position `start` on should foretell `targets`."""

    stretch: Stretch
    start: int
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """The tokens of one row of a batch, the sample they are of, and what of them is scored.

    `answer` is what should be generated behind them, up to one of `ends`.
    """

    sample: int
    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    answer: str = ""
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded rows, with the sample, the number of tokens, the answer and its ends of each.

    Scored position k is at `rows[k]`, `positions[k]`, foretells `targets[k]`, and is in stretch `owner[k]`.
    """

    inputs: dict[str, Tensor]
    samples: tuple[int, ...]
    lengths: tuple[int, ...]
    answers: tuple[str, ...]
    ends: tuple[tuple[str, ...], ...]
    stretches: tuple[Stretch, ...]
    rows: Tensor
    positions: Tensor
    targets: Tensor
    owner: Tensor


class Samples(Protocol):
    """What a model is judged on: samples in order, cut into batches, under one metric. The key names all of it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> str: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def view(self) -> View: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def key(self) -> str: ...
    def __len__(self) -> int: ...
    def batches(
        self, start: int = 0, stop: int | None = None, device: torch.device | str = "cpu"
    ) -> Sequence[Batch]: ...


@dataclass(frozen=True, eq=False)
class Prepared:
    """The rows of every sample of a workload, as one metric needs them. The key names them with their settings."""

    workload: Workload
    metric: Metric
    settings: Settings
    tokenizer: Any
    rows: tuple[tuple[Row, ...], ...]
    key: str

    @property
    def name(self) -> str:
        """The name of the workload."""
        return self.workload.name

    @property
    def shape(self) -> str:
        """The shape of its items."""
        return self.workload.shape

    @property
    def view(self) -> View:
        """What of an item is shown and scored."""
        return self.metric.views[self.shape]

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, start: int = 0, stop: int | None = None, device: torch.device | str = "cpu") -> list[Batch]:
        """The batches of a slice of the samples: rows of like length together, as many as the settings allow."""
        chosen = self.rows[slice(*span(self, start, stop))]
        rows = sorted((row for of_one in chosen for row in of_one), key=lambda row: len(row.tokens))
        left, pad = self.view == "generation", _pad_token(self.tokenizer)
        return [_batch(group, pad, left, device) for group in _groups(rows, self.settings.tokens_per_batch)]


def prepare(workload: Workload, tokenizer: Any, metric: str, settings: Settings | None = None) -> Prepared:
    """The workload in tokens, laid out for a metric that fits it."""
    chosen, settings = metric_for(metric, workload.shape), settings or Settings()
    if tokenizer is None:
        raise BadInputError("the model came without a tokenizer; give the folder or name of one that has it.")
    maker = _Maker(tokenizer, settings, workload.name)
    rows = tuple(maker.rows(chosen.views[workload.shape], i, item) for i, item in enumerate(workload.items))
    key = key_of((workload.content_hash, metric, settings, rows))
    return Prepared(workload, chosen, settings, tokenizer, rows, key)


def _pad_token(tokenizer: Any) -> int:
    """Any token will do: padding is masked, and no position behind or before it that is scored sees it."""
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((token for token in known if isinstance(token, int)), 0)


def _groups(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    group: list[Row] = []
    for row in rows:
        if group and len(row.tokens) * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(row)
    yield group


def _batch(rows: Sequence[Row], pad: int, left: bool, device: torch.device | str) -> Batch:
    width = max(len(row.tokens) for row in rows)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(width - len(row.tokens), None) if left else slice(len(row.tokens))
        ids[i, place] = torch.tensor(row.tokens)
        mask[i, place] = 1
    pieces = [(i, piece) for i, row in enumerate(rows) for piece in row.pieces]
    scored = [
        (i, piece.start + k, target, n) for n, (i, piece) in enumerate(pieces) for k, target in enumerate(piece.targets)
    ]
    columns = torch.tensor(scored, dtype=torch.long, device=device).reshape(-1, 4).t().contiguous()
    return Batch(
        {"input_ids": ids.to(device), "attention_mask": mask.to(device)},
        tuple(row.sample for row in rows),
        tuple(len(row.tokens) for row in rows),
        tuple(row.answer for row in rows),
        tuple(row.ends for row in rows),
        tuple(piece.stretch for _, piece in pieces),
        *columns,
    )


class _Maker:
    """Makes the rows of items with one tokenizer."""

    def __init__(self, tokenizer: Any, settings: Settings, name: str) -> None:
        self.tokenizer, self.settings, self.name = tokenizer, settings, name
        self.chat = bool(getattr(tokenizer, "chat_template", None)) if settings.chat is None else settings.chat
        if self.chat and not getattr(tokenizer, "chat_template", None):
            raise BadInputError("chat: the tokenizer has no chat template; leave chat out, or set it to False.")
        bare, whole = self._encode("a"), self._encode("a", special=True)
        starts = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
        self.opening = whole[: starts[0]] if starts else []

    def rows(self, view: str, sample: int, item: Item) -> tuple[Row, ...]:
        """The rows of one item under a view."""
        if view == "whole":
            return (Row(sample, tuple(self._whole(sample, item))),)
        if view == "generation":
            return (self._to_be_answered(sample, item),)
        rests = self._choices(item) if view == "choices" else {_right(item): self._answer(item)}
        return self._scored(sample, item, rests)

    def _to_be_answered(self, sample: int, item: Item) -> Row:
        tokens = self._open(item)
        self._check_room(sample, len(tokens))
        ends = item.ends if isinstance(item, Question) else None
        return Row(sample, tuple(tokens), (), self._answer(item).strip(), PLAIN_ENDS if ends is None else ends)

    def _scored(self, sample: int, item: Item, rests: dict[int, str]) -> tuple[Row, ...]:
        head = self._open(item)
        wholes = {choice: self._open(item, rest) for choice, rest in rests.items()}
        # The end of the prompt may melt into one token with what follows: then that token is scored, in every choice.
        start = max(1, min(_shared(head, whole) for whole in wholes.values()))
        if isinstance(item, Text):
            start, wholes = max(1, len(self.opening)), {0: wholes[0][: self.settings.max_length + 1]}
        rows: list[Row] = []
        for choice, whole in sorted(wholes.items(), key=lambda one: -len(one[1])):
            self._check_room(sample, len(whole) - 1)
            targets, tokens = tuple(whole[start:]), tuple(whole[:-1])
            if not targets:
                raise BadInputError(f"item {sample + 1} of {self.name}: too short, no token of it can be scored.")
            stretch = Stretch(sample, choice, len(rests[choice].strip().encode()), choice == _right(item))
            piece = Piece(stretch, start - 1, targets)
            # A row whose tokens open a longer one needs no run of its own: a causal model gives the same logits there.
            host = next((i for i, row in enumerate(rows) if row.tokens[: len(tokens)] == tokens), None)
            if host is None:
                rows.append(Row(sample, tokens, (piece,)))
            else:
                rows[host] = replace(rows[host], pieces=(*rows[host].pieces, piece))
        return tuple(rows)

    def _prompt(self, item: Item) -> str:
        if isinstance(item, Question):
            return self._asked(item.question) if item.ends is None else item.question
        return "" if isinstance(item, Text) else item.prompt

    def _answer(self, item: Item) -> str:
        if isinstance(item, Question):
            return item.answer if self._in_chat(item) else _behind(self._prompt(item), item.answer)
        if isinstance(item, Choice):
            return self._choices(item)[item.answer]
        return item.text if isinstance(item, Text) else item.completion

    def _choices(self, item: Item) -> dict[int, str]:
        """The choices as they follow the prompt."""
        return (
            {i: _behind(item.prompt, text) for i, text in enumerate(item.choices)} if isinstance(item, Choice) else {}
        )

    def _in_chat(self, item: Item) -> bool:
        return self.chat and isinstance(item, Question) and item.ends is None

    def _asked(self, question: str) -> str:
        if not self.chat:
            return PLAIN_QUESTION.format(question)
        # Templates that know no thinking pass over the word; a number must come before the tokens run out.
        said: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            chat_template=_dated(self.tokenizer.get_chat_template()),
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return said

    def _whole(self, sample: int, item: Item) -> list[int]:
        tokens = self._encode(self._prompt(item) + self._answer(item), special=True)
        if isinstance(item, Text) and len(tokens) > self.settings.max_length:
            limit = self.settings.max_length
            return list(self.tokenizer(item.text, truncation=True, max_length=limit)["input_ids"])
        self._check_room(sample, len(tokens))
        return tokens

    def _open(self, item: Item, rest: str = "") -> list[int]:
        """The prompt and what follows it, behind what the tokenizer puts before a text; a chat template has done so."""
        opening = [] if self._in_chat(item) else self.opening
        return [*opening, *self._encode(self._prompt(item) + rest)]

    def _encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=special, verbose=False))

    def _check_room(self, sample: int, length: int) -> None:
        if length > self.settings.max_length:
            raise BadInputError(
                f"item {sample + 1} of {self.name}: {length} tokens; expected at most {self.settings.max_length}. "
                "Leave it out, or raise max_length if the model has the positions."
            )


def _behind(prompt: str, text: str) -> str:
    """A text as it follows a prompt: behind one space, unless there is white space already."""
    return text if prompt[-1:].isspace() or text[0].isspace() else f" {text}"


def _dated(template: str) -> str:
    """A chat template in which today is always the same day: a macro stands before the function that asks the clock."""
    if "strftime_now" not in template:
        return template
    said = "".join(f"|replace('%{one}', '{TEMPLATE_DAY.strftime('%' + one)}')" for one in DATE_DIRECTIVES)
    return f"{{%- macro strftime_now(format) -%}}{{{{ format{said} }}}}{{%- endmacro -%}}{template}"


def _right(item: Item) -> int:
    return item.answer if isinstance(item, Choice) else 0


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

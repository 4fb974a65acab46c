"""Options from a YAML file: the names of the flags, alone or in a block `diagnostic:`. What the command line says wins.

It knows no option of its own: every value is read by the option that it is for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisescope.core.errors import BadInputError, unknown_name

BLOCK, SWITCH = "diagnostic", "enabled"
# Parts of the block; their settings have names of their own, so they only group.
PARTS = ("operator", "layer", "channel")


@dataclass(frozen=True)
class Entry:
    """One setting of a file: its name with dashes, its value, and where it stands."""

    name: str
    value: Any
    place: str


def add_config(parser: argparse.ArgumentParser) -> None:
    """The option that names the file."""
    parser.add_argument(
        "--config", type=Path, metavar="F", help="YAML file with the options above; the command line wins over it"
    )


def named_in(words: Sequence[str]) -> Path | None:
    """The file that a command line names."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_config(reader)
    path: Path | None = reader.parse_known_args(words)[0].config
    return path


def fill(parser: argparse.ArgumentParser, path: Path) -> None:
    """Make the settings of a file the defaults of a command."""
    options = {action.dest.replace("_", "-"): action for action in parser._actions if action.dest not in _OWN}
    seen: dict[str, str] = {}
    for entry in read(path):
        if entry.name not in options:
            raise BadInputError(f"{entry.place}: {unknown_name('option', entry.name, list(options))}")
        if entry.name in seen:
            raise BadInputError(f"{entry.place}: {entry.name} was already set at {seen[entry.name]}; remove one.")
        seen[entry.name] = entry.place
        action = options[entry.name]
        action.default, action.required = _value(action, entry), False


_OWN = ("help", "config", "run")


def _value(action: argparse.Action, entry: Entry) -> Any:
    if action.nargs == 0:
        if not isinstance(entry.value, bool):
            raise BadInputError(f"{entry.place}: {entry.name} is {entry.value!r}; expected true or false.")
        return entry.value
    if action.nargs == "?" and entry.value is True:
        return action.const
    parts = entry.value if isinstance(entry.value, list) else [entry.value]
    if not parts or not all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts):
        raise BadInputError(f"{entry.place}: {entry.name} is {entry.value!r}; expected a text or a number.")
    if isinstance(action.default, list):
        # An option that may be repeated.
        return [str(part) for part in parts]
    text = ",".join(map(str, parts))
    try:
        return action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as problem:
        raise BadInputError(f"{entry.place}: {entry.name}: {problem}") from None


def read(path: Path) -> list[Entry]:
    """Every setting of a file, in its order."""
    import yaml

    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        return list(_entries(path, node)) if node is not None else []
    except OSError as problem:
        raise BadInputError(f"{path}: {problem.strerror or problem}; --config expects a YAML file.") from None
    except yaml.MarkedYAMLError as problem:
        line = f":{problem.problem_mark.line + 1}" if problem.problem_mark else ""
        raise BadInputError(f"{path}{line}: not YAML: {problem.problem or problem.context}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise BadInputError(f"{path}: not YAML: {' '.join(str(problem).split())}.") from None


def _entries(path: Path, node: Any, within: str = "") -> Iterator[Entry]:
    """The settings of a mapping and of the groups in it."""
    for key, value in _pairs(path, node, within):
        name, place = str(key.value).replace("_", "-"), f"{path}:{key.start_mark.line + 1}"
        if (name == BLOCK and not within) or (name in PARTS and within == BLOCK):
            yield from _entries(path, value, name)
        elif name == SWITCH and within == BLOCK:
            if _plain(value) is not True:
                raise BadInputError(f"{place}: {BLOCK} is switched off; set {SWITCH}: true to have it run.")
        else:
            yield Entry(name, _plain(value), place)


def _pairs(path: Path, node: Any, within: str) -> list[Any]:
    import yaml

    if not isinstance(node, yaml.MappingNode):
        place = f"{path}:{node.start_mark.line + 1}"
        raise BadInputError(f"{place}: expected settings such as noise-scale: 0.05 under {within or 'the file'}.")
    return list(node.value)


def _plain(node: Any) -> Any:
    import yaml

    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()

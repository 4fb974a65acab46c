"""Options from a YAML file: the names of the flags, alone or in a block `diagnostic:`. What the command line says wins.

It knows no option of its own: every value is read by the option that it is for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.runs.settings_file import DIAGNOSTIC, SWITCH, Entry, read


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
        if (entry.block, entry.name) == (DIAGNOSTIC, SWITCH):
            _check_switch(entry)
            continue
        if entry.name not in options:
            raise BadInputError(f"{entry.place}: {unknown_name('option', entry.name, list(options))}")
        if entry.name in seen:
            raise BadInputError(f"{entry.place}: {entry.name} was already set at {seen[entry.name]}; remove one.")
        seen[entry.name] = entry.place
        action = options[entry.name]
        action.default, action.required = _value(action, entry), False


_OWN = ("help", "config", "run")


def _check_switch(entry: Entry) -> None:
    if entry.value is not True:
        raise BadInputError(f"{entry.place}: {DIAGNOSTIC} is switched off; set {SWITCH}: true to have it run.")


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

"""Writes the pages of reference from the code: commands, configuration, environment, kinds.

With --check it only says whether that is needed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from noisescope.cli.main import parsers
from noisescope.core.environment import VARIABLES
from noisescope.core.vocabulary import KINDS
from noisescope.verl.environment import FORK, OWN, SWITCHES, TRAINING

DOCS = Path(__file__).parents[1] / "docs"
HEAD = """# Command line

```bash
noisescope COMMAND [OPTION...]
```

Results go to stdout. Progress, notes and errors go to stderr. An error is one line that says what was seen, what was
expected and what to do. Repeating a command with the same `--out` goes on from what the folder holds.

| exit status | meaning |
|---|---|
| 0 | pass |
| 1 | a limit was broken, or a fault was found |
| 2 | bad input, or failure |
| 3 | interrupted; repeating the command goes on from there |

`eval "$(noisescope completion bash)"` completes commands and options in bash; zsh works too. What the environment
can set is [listed](environment.md).

This page is made from the code by `tools/make_reference.py`.
"""
CONFIGURATION = """
## Configuration file

Options can be kept in a YAML file that `--config` names, each under its own name, with dashes or underscores. Where
the command line says something else, it wins. A mistake is reported with its file and line. A list stands for what the
option takes with commas.

A block `diagnostic:` of the configuration of a training job is read as well: its parts `operator`, `layer` and
`channel` only group, and `enabled: false` in it stops the command. These are the options of `diagnose`, each with what
holds when it is left out; a line behind `#` sets nothing.

```yaml
{settings}
```
"""
# The groups of the block that training jobs have.
PARTS: Mapping[str, tuple[str, ...]] = {
    "operator": ("noise-scale",),
    "layer": ("window-size", "step-size"),
    "channel": ("outlier-threshold", "calibration"),
}
NO_SETTING = ("help", "config", "out")


def commands() -> str:
    """The page of the command line and of the file that stands for it."""
    every = parsers()[1]
    told = "".join("\n" + "\n".join(section(name, one)) + "\n" for name, one in every.items())
    return HEAD + told + CONFIGURATION.format(settings="\n".join(settings(every["diagnose"])))


def settings(command: argparse.ArgumentParser) -> Iterator[str]:
    """A file that says what holds anyway."""
    named = {action.dest.replace("_", "-"): action for action in command._actions if action.dest not in NO_SETTING}
    grouped = {name for names in PARTS.values() for name in names}
    yield from ("model: demo", "out: runs/first", "diagnostic:", "  enabled: true")
    yield from (setting("  ", name, action) for name, action in named.items() if name not in {"model", *grouped})
    for part, names in PARTS.items():
        yield f"  {part}:"
        yield from (setting("    ", name, named[name]) for name in names)


def setting(indent: str, name: str, action: argparse.Action) -> str:
    """One line; a comment where nothing holds."""
    if action.nargs == 0:
        return f"{indent}{name}: false"
    if action.default is None:
        return f"{indent}# {name}: {action.metavar}"
    return f"{indent}{name}: {action.default}"


def environment() -> str:
    """The page of the environment with its tables made anew; the text around them stays."""
    text = (DOCS / "environment.md").read_text(encoding="utf-8")
    switches = [
        (code(OWN + name), code(FORK + name) if one.shared else "", code(one.example), one.left_out, one.meaning)
        for name, one in SWITCHES.items()
    ]
    text = with_table(text, "variable | also read as | example | when left out | meaning", switches)
    training = [(code(OWN + name), code(one.example), one.left_out, one.meaning) for name, one in TRAINING.items()]
    text = with_table(text, "variable of verl | example | when left out | meaning", training)
    others = [(code(name), one.left_out, one.meaning) for name, one in VARIABLES.items()]
    return with_table(text, "variable | when left out | meaning", others)


def kinds() -> str:
    """The page of kinds with its table made anew."""
    rows = [
        (
            code(name),
            ("fault: " if spec.family == "fault" else "") + spec.meaning.replace("|", "\\|"),
            ", ".join(code(f"{key}={value!r}".replace("'", '"')) for key, value in spec.params.items()),
        )
        for name, spec in KINDS.items()
    ]
    return with_table((DOCS / "kinds.md").read_text(encoding="utf-8"), "kind | what it does | its parameters", rows)


def code(text: str) -> str:
    """As code."""
    return f"`{text}`"


def with_table(text: str, head: str, rows: Iterable[Sequence[str]]) -> str:
    """A text whose table of this head has these rows."""
    rule = "|".join("---" for _ in head.split("|"))
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")
    whole = f"| {head} |\n|{rule}|\n{table}"
    made, count = re.subn(rf"^\| {re.escape(head)} \|\n(\|.*\n)+", lambda _: whole, text, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{count} tables of the head {head!r}; expected one.")
    return made


PAGES = {"command-line.md": commands, "environment.md": environment, "kinds.md": kinds}


def section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """One command: what it is for, an example, its options."""
    example = (command.epilog or "").removeprefix("example:\n  ")
    yield from (f"## {name}", "", (command.description or "").strip(), "", "```bash", example, "```")
    asked = [action for action in command._actions if action.dest != "help"]
    if asked:
        yield from ("", "| option | value | when left out | meaning |", "|---|---|---|---|")
        yield from map(row, asked)


def row(action: argparse.Action) -> str:
    """One option or argument."""
    name = ", ".join(f"`{word}`" for word in action.option_strings) or str(action.metavar or action.dest)
    value = f"`{action.metavar}`" if action.option_strings and action.metavar else ""
    # The default has a column of its own.
    meaning = re.sub(r" ?\(default: (?:%\(default\)[sg]|[^)])*\)", "", action.help or "").replace("%%", "%")
    meaning = re.sub(r" ?\(%\(default\)[sg]\)", "", meaning)
    return f"| {name} | {value} | {left_out(action)} | {meaning.replace('|', chr(92) + '|')} |"


def left_out(action: argparse.Action) -> str:
    """What holds if nobody says anything."""
    if action.required:
        return "needed"
    if action.nargs == 0:
        return "off"
    default = action.default
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return "" if default is None else f"`{default}`"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--check", action="store_true")
    check = asked.parse_args(arguments).check
    old = [name for name, make in PAGES.items() if (DOCS / name).read_text(encoding="utf-8") != make()]
    for name in old if not check else ():
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())

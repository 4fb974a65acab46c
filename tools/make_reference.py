"""Writes docs/command-line.md from the parsers of the commands; with --check it only says whether that is needed."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from noisescope.cli.main import parsers

TARGET = Path(__file__).parents[1] / "docs" / "command-line.md"
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

Options can be kept in a YAML file, under their own names or in a block `diagnostic:`, and passed with `--config`.
What the command line says wins over the file. A mistake is reported with its file and line.

```yaml
diagnostic:
  enabled: true
  noise-scale: 0.05
  samples: 100
  layer:
    window-size: 3
```

`eval "$(noisescope completion bash)"` completes commands and options in bash; zsh works too. What the environment
can set is [listed](environment.md).

This page is made from the code by `tools/make_reference.py`.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join("\n" + "\n".join(section(name, one)) + "\n" for name, one in parsers()[1].items())


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
    """Write the page, or check it."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--check", action="store_true")
    if asked.parse_args(arguments).check:
        return 0 if TARGET.read_text(encoding="utf-8") == page() else 1
    TARGET.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command `noisescope`: reads what was asked, runs it, and turns every outcome into an exit status.

It measures nothing and decides nothing. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from noisescope.cli.config import fill, named_in
from noisescope.cli.lines import remark
from noisescope.core.errors import NoisescopeError, unknown_name
from noisescope.core.foreign import clean
from noisescope.core.version import VERSION

PASS, LIMIT_BROKEN, FAILED, INTERRUPTED = 0, 1, 2, 3
COMMANDS = (
    "demo",
    "diagnose",
    "robustness",
    "locate",
    "capture",
    "compare",
    "plan",
    "bits",
    "smooth",
    "faults",
    "gate",
    "experiment",
    "report",
    "sites",
    "status",
    "completion",
)
_STATUSES = """exit status:
  0  pass
  1  a limit was broken, or a fault was found
  2  bad input, or failure
  3  interrupted; repeating the command goes on from there"""


class Command(Protocol):
    """A module of this room that is one command."""

    SUMMARY: str
    EXAMPLE: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add what the command takes."""

    def run(self, asked: argparse.Namespace, /) -> int:
        """Do it, and say with which status."""


class OneLine(argparse.ArgumentParser):
    """A parser that tells a mistake in one line; the usage is on the help page."""

    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: {clean(message).rstrip('.')}. What it takes: {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        parsers()[0].print_help(sys.stderr)
        return FAILED
    try:
        asked = read_words(words)
        status: int = asked.run(asked)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is still to be flushed has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PASS
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "interrupted", INTERRUPTED)
    except NoisescopeError as problem:
        return _say(str(problem), FAILED)
    except Exception as problem:
        if os.environ.get("NOISESCOPE_TRACEBACK"):
            raise
        seen = " ".join(f"{type(problem).__name__}: {problem}".split())
        return _say(f"{seen}. This was not foreseen; NOISESCOPE_TRACEBACK=1 shows where it happened.", FAILED)
    return status


def read_words(words: Sequence[str]) -> argparse.Namespace:
    """What a command line asks for, the file that it names read as well."""
    whole, commands = parsers()
    name = words[0]
    if name not in commands and not name.startswith("-"):
        raise unknown_name("command", name, commands)
    path = named_in(words)
    if path is not None and name in commands:
        fill(commands[name], path)
    asked, strange = whole.parse_known_args(words)
    if strange:
        known = [option for action in commands[name]._actions for option in action.option_strings]
        raise unknown_name(f"option of {name}", strange[0].partition("=")[0], known)
    asked.command_line = shlex.join(["noisescope", *words])
    return asked


def parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The whole command line with its help, and that of each command by name."""
    whole = OneLine(
        prog="noisescope",
        allow_abbrev=False,
        description="Finds the fragile operators, layers and channels of a language model by injecting noise.",
        epilog=f"{_STATUSES}\n\nexample:\n  noisescope demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"noisescope {VERSION}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND [OPTION]", required=True)
    for name in COMMANDS:
        command = cast(Command, import_module(f"noisescope.cli.{name}"))
        one = commands.add_parser(
            name,
            help=command.SUMMARY,
            allow_abbrev=False,
            description=command.__doc__,
            epilog=f"example:\n  {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(one)
        one.set_defaults(run=command.run)
    return whole, commands.choices


def _say(message: str, status: int) -> int:
    remark(f"noisescope: {message}")
    return status

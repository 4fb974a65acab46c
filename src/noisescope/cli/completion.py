"""Print a script that completes noisescope's commands and options in a shell.

For bash, put  eval "$(noisescope completion bash)"  into ~/.bashrc. It only prints; nothing is installed.
"""

from __future__ import annotations

import argparse

from noisescope.cli.lines import show
from noisescope.cli.options import one_of

SUMMARY = "print the completion script of a shell"
EXAMPLE = "noisescope completion bash"
SHELLS = ("bash", "zsh")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Only the shell."""
    parser.add_argument("shell", type=one_of("shell", SHELLS), metavar="SHELL", help=", ".join(SHELLS))


def run(asked: argparse.Namespace) -> int:
    """The script on stdout."""
    import shtab

    from noisescope.cli.main import parsers

    show(shtab.complete(parsers()[0], asked.shell).splitlines())
    return 0

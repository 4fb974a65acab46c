"""List the sites of a model: every place where noise can be put, by layer, operator and path."""

from __future__ import annotations

import argparse
from collections import Counter

from noisescope.cli.lines import remark, show
from noisescope.cli.options import add_model, load_subject
from noisescope.core.records import Site

SUMMARY = "list every place of a model where noise can be put"
EXAMPLE = "noisescope sites demo"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Only the model."""
    add_model(parser)


def run(asked: argparse.Namespace) -> int:
    """One line per site on stdout, the totals on stderr."""
    subject = load_subject(asked)
    show(map(line_of, subject.sites))
    kinds = ", ".join(f"{number} {operator}" for operator, number in Counter(s.operator for s in subject.sites).items())
    remark(f"{len(subject.layers)} layers, {len(subject.sites)} sites: {kinds}")
    return 0


def line_of(site: Site) -> str:
    """The layer (- outside the layers), the operator and the path."""
    layer = "-" if site.layer is None else str(site.layer)
    return f"{layer:>4}  {site.operator:<10}  {site.path}"

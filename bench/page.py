"""Writes docs/benchmarks.md: runs the parts that are asked for and keeps the others as the page has them.

Usage: python bench/page.py [PART ...] [--out FILE]

Each part is a script of this folder that can be run by itself.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from measuring import machine

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
# The heading of each part and what has to be known to read it.
PARTS = {
    "cost": (
        "What injection costs",
        "Qwen2 with 8 layers, width 256, vocabulary 4096, batch 4 x 128, float32, unfused attention, relative "
        "Gaussian noise of 5 %. Beside it: products rebound in torch to functions that add `randn_like` noise, as "
        "the verl fork does it; the limit that one `randn_like` and one `addcmul` for each product set; and two "
        "injectors for torch with that same noise, because neither has a relative one. They reach the outputs of "
        '57 linear layers and not the 16 products inside attention. "clean again" is the clean model against '
        "itself: what differs from 1 there is the noise of the measurement.",
    ),
    "diagnosis_cost": (
        "What a diagnosis costs",
        "In evaluations of the clean model on all samples. The demo model, SmolLM2-135M with 30 layers, on 8 texts of "
        "16 tokens; noise of 5 %. The naive protocol perturbs every window of three layers, every layer and every "
        "operator, as the exhaustive diagnosis does, and runs the whole model each time. Its row is one seed of 3: all "
        "of it costs three times as much. The other rows are whole, with 3 seeds, the control and the channels. Texts "
        "so few and short leave verdicts open, so the default goes on to its limit of 25 evaluations by its own count, "
        "which is of tokens that run through the model; the rest is statistics of channels and the KL over the "
        "vocabulary. Where verdicts can be had it stops sooner, and comes to those of the exhaustive diagnosis: see "
        "[the page of the method](method.md#how-well-it-holds-on-a-real-model).",
    ),
    "hessian_cost": (
        "Hessian traces",
        "The trace in every one of 12 layers of width 128 with 4 probes. Layer by layer, a probe is "
        "differentiated once for each of them; here once for all, because the signs of two layers are "
        "independent.",
    ),
    "growth": (
        "Time and memory, by layers and by samples",
        "The default diagnosis of Qwen2 of width 64, each in a process of its own. By "
        "layers with 8 samples of 32 tokens, by samples with 4 layers.",
    ),
    "help": ("The help page", "Commands in processes of their own, in turns."),
}
_HEAD = """# Benchmarks

Written by `make bench`; `make bench PARTS="cost growth"` measures some parts anew. Ratios are of CPU time of one
thread, measured in one process, the variants in turns in an order that rotates; the figure is the median over the
rounds of the ratio within a round. Models have random weights, which cost what trained ones cost, unless it is said.
Every part says when and on what it was measured. What is skipped says why.

How often faults are found, beside the classical probes: [finding the fault](locating.md#how-often-it-is-right), by
`make bench-faults`. What injection costs on a GPU: [benchmarks on a GPU](benchmarks-gpu.md). How the work is shared
among many workers: [scale](scale.md)."""
_WRAP = textwrap.TextWrapper(118, break_long_words=False, break_on_hyphens=False)


def held(page: str) -> dict[str, str]:
    """The parts of a page by name."""
    pieces = re.split(r"<!-- part: (\w+) -->\n", page)
    return dict(zip(pieces[1::2], (text.strip() for text in pieces[2::2]), strict=True))


def made(name: str) -> str:
    """A part, measured now."""
    heading, about = PARTS[name]
    print(heading, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "part.md", time.monotonic()
        subprocess.run([sys.executable, HERE / f"{name}.py", "--out", out], check=True, stdout=subprocess.DEVNULL)
        minutes = (time.monotonic() - start) / 60
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        busy = f"{os.cpu_count()} cores with a load of {os.getloadavg()[2]:.1f}"
        measured = f"Measured {when} by `python bench/{name}.py` in {minutes:.1f} min: {machine()}, {busy}."
        texts = (
            f"## {heading}",
            _WRAP.fill(about),
            _WRAP.fill(measured),
            out.read_text("utf-8").strip(),
        )
        return "\n\n".join(texts)


def write(page: Path, parts: Sequence[str]) -> None:
    """Measure parts one by one; the page is whole after each."""
    for name in parts:
        known = held(page.read_text(encoding="utf-8")) if page.exists() else {}
        known[name] = made(name)
        # Sections of other commands stay as they are.
        names = [*(one for one in PARTS if one in known), *(one for one in known if one not in PARTS)]
        pieces = [f"<!-- part: {one} -->\n{known[one]}" for one in names]
        page.write_text("\n\n".join([_HEAD, *pieces]) + "\n", encoding="utf-8")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    for name in asked.parts:
        if name not in PARTS:
            parser.error(f"no part {name}; there are {', '.join(PARTS)}")
    write(asked.out, asked.parts or list(PARTS))


if __name__ == "__main__":
    main()

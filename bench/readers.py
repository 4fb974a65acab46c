"""Has the tools that precision maps are written for read them: how coarsely each rounds, beside what was measured here.

Usage: python bench/readers.py [--work build/readers] [--out docs/precision.md]

A map of SmolLM2-135M-Instruct gives each format to one group of layers. compressed-tensors comes with the development
set-up; llm-compressor, ModelOpt and auto-round get environments of their own under --work, for each wants another
transformers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from environments import python_with

from noisescope.core.precision import Choice, Option, PrecisionMap, WeightFormat
from noisescope.inject.weights import rounded
from noisescope.model.embedded import embedded_folder
from noisescope.model.linears import linear_groups, matrix_of
from noisescope.model.load import load
from noisescope.runs.precision import FOLDER, write_recipes

FORMATS = ("bf16", "fp8", "int8", "int6", "int5", "int4", "int4:64", "uint4", "mxfp4")
REST = "bf16"
BEGIN, END = "<!-- read by make bench-readers -->", "<!-- end of what was read -->"


@dataclass(frozen=True)
class Tool:
    """A package that reads one of the files, in an environment of its own."""

    name: str
    module: str
    packages: tuple[str, ...]
    file: str
    script: str


TOOLS = (
    Tool("llm-compressor 0.14.0.1", "llmcompressor", ("llmcompressor==0.14.0.1",), "llm-compressor.yaml",
         "read_llm_compressor.py"),
    # ModelOpt does not name requests, which it needs.
    Tool("ModelOpt 0.47.0", "modelopt.torch.quantization", ("nvidia-modelopt==0.47.0", "transformers", "requests"),
         "modelopt.yaml", "read_modelopt.py"),
    Tool("auto-round 0.16.1", "auto_round", ("auto-round==0.16.1", "transformers"), "auto-round.json",
         "read_auto_round.py"),
)  # fmt: skip


@dataclass
class Bench:
    """The model, a map with every format, and the files."""

    work: Path
    model: torch.nn.Module = field(default_factory=lambda: load("demo").model)

    def __post_init__(self):
        groups = linear_groups(self.model).groups
        names = [*FORMATS, *[REST] * (len(groups) - len(FORMATS))]
        self.map = PrecisionMap(8.0, "exact", tuple(map(_choice, groups, names)), 1, 1)
        self.paths = {choice.format: [one.path for one in choice.group.linears] for choice in self.map.choices[:9]}
        write_recipes(self.map, self.work)

    def own(self, path, name):
        """The relative error of a weight as it is rounded here."""
        weight = matrix_of(self.model.get_submodule(path)).float()
        return ((rounded(weight, WeightFormat.of(name)) - weight).norm() / weight.norm()).item()


def _choice(group, name):
    return Choice(group, name, (Option(name, group.size(WeightFormat.of(name)), 0.0),))


def by_compressed_tensors(bench):
    """Relative errors by path of weights that compressed-tensors rounds."""
    plain = json.loads((bench.work / FOLDER / "compressed-tensors.json").read_text())
    found = {}
    for group in plain["config_groups"].values():
        arguments = QuantizationScheme(**group).weights
        for path in group["targets"]:
            weight = matrix_of(bench.model.get_submodule(path)).float()
            blocks = weight.unflatten(1, (-1, arguments.group_size or weight.shape[1]))
            scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments)
            theirs = fake_quantize(weight, scale, zero, arguments)
            found[path] = ((theirs - weight).norm() / weight.norm()).item()
    return found


def by_tool(bench, tool):
    """The same as a tool in an environment of its own says it; None where there is none."""
    home = bench.work / f"{tool.module.partition('.')[0]}-env"
    python = python_with(home, tool.module, tool.packages)
    if python is None:
        return None
    answer = bench.work / f"{tool.module}.json"
    paths = ",".join(path for members in bench.paths.values() for path in members)
    script = Path(__file__).with_name(tool.script)
    command = [python, script, embedded_folder("demo"), bench.work / FOLDER / tool.file, paths, answer]
    environment = {**os.environ, "PYTHONPATH": "", "TORCHDYNAMO_DISABLE": "1"}
    if subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode:
        return None
    return json.loads(answer.read_text())


def table(bench):
    """Errors in shares of those that noisescope measures with, in Markdown."""
    columns = {"compressed-tensors": by_compressed_tensors(bench)} | {tool.name: by_tool(bench, tool) for tool in TOOLS}
    lines = [f"| format | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name, paths in bench.paths.items():
        own = math.fsum(bench.own(path, name) for path in paths)
        cells = [_cell(errors, paths, own) for errors in columns.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(errors, paths, own):
    if errors is None:
        return "not installed"
    seen = [errors.get(path) for path in paths]
    if None in seen:
        return "left as it is"
    return next((one for one in seen if isinstance(one, str)), None) or (
        f"{math.fsum(seen) / own:.3f}" if own else ("1" if not any(seen) else "0 here")
    )


def main():
    """Read, print, and write into the page where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/readers"))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    text = table(Bench(asked.work))
    print(text)
    if asked.out is not None:
        page = asked.out.read_text()
        asked.out.write_text(f"{page.split(BEGIN)[0]}{BEGIN}\n{text}\n{END}{page.split(END)[1]}")


if __name__ == "__main__":
    main()

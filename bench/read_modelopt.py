"""Has ModelOpt read a precision map: runs in an environment of its own, which bench/readers.py makes.

Usage: python bench/read_modelopt.py MODEL RECIPE PATH,PATH,... ANSWER.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
import transformers
import yaml


def error_of(module):
    """The relative error of a weight behind its quantizer; None where that is off, or why there is none."""
    if not module.weight_quantizer.is_enabled:
        return None
    try:
        theirs = module.weight_quantizer(module.weight)
    except RuntimeError as problem:
        return "needs CUDA" if "CUDA" in str(problem) else str(problem)
    return ((theirs - module.weight).norm() / module.weight.norm()).item()


def main():
    """The error of every layer that is named."""
    folder, recipe, paths, answer = sys.argv[1:5]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(8)[None]
    read = mtq.quantize(model, yaml.safe_load(Path(recipe).read_text()), lambda model: model(input_ids=ids))
    with torch.no_grad():
        found = {path: error_of(read.get_submodule(path)) for path in paths.split(",")}
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

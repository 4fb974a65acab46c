"""Has auto-round read a precision map: runs in an environment of its own, which bench/readers.py makes.

Usage: python bench/read_auto_round.py MODEL RECIPE PATH,PATH,... ANSWER.json

Rounding is to nearest, because what is asked is whether it understands the file, and not what its training gains.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from auto_round import AutoRound


def main():
    """The error of every layer that is named; None where its weight is what it was."""
    folder, recipe, paths, answer = sys.argv[1:5]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = {path: model.get_submodule(path).weight.detach().clone() for path in paths.split(",")}
    layers = json.loads(Path(recipe).read_text())["layer_config"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rounding = AutoRound(
        model, tokenizer, scheme="W4A16", layer_config=layers, iters=0, disable_opt_rtn=True, device_map="cpu"
    )
    read, _ = rounding.quantize()
    found = {}
    for path, weight in before.items():
        theirs = read.get_submodule(path).weight.detach().float()
        found[path] = None if theirs.equal(weight) else ((theirs - weight).norm() / weight.norm()).item()
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

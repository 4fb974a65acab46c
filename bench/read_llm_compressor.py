"""Has llm-compressor read a precision map: runs in an environment of its own, which bench/readers.py makes.

Usage: python bench/read_llm_compressor.py MODEL RECIPE PATH,PATH,... ANSWER.json

The recipe is applied as people apply it, without data, and the layers are taken from what is packed by it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from compressed_tensors.compressors.base import decompress_module
from llmcompressor import oneshot


def main():
    """The error of every layer that is named; None where its weight is what it was."""
    folder, recipe, paths, answer = sys.argv[1:5]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    before = {path: model.get_submodule(path).weight.detach().float().clone() for path in paths.split(",")}
    oneshot(model=model, recipe=recipe)
    with tempfile.TemporaryDirectory() as packed:
        model.save_pretrained(packed, save_compressed=True)
    found = {}
    for path, weight in before.items():
        module = model.get_submodule(path)
        if hasattr(module, "quantization_scheme"):
            decompress_module(module)
        theirs = module.weight.detach().float()
        found[path] = None if theirs.equal(weight) else ((theirs - weight).norm() / weight.norm()).item()
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

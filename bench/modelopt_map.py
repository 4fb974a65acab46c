"""Asks NVIDIA ModelOpt for its precision maps: runs in an environment of its own, which bench/precision.py makes.

Usage: python bench/modelopt_map.py ASKED.json ANSWER.json

It imports nothing of noisescope. Scores are those of `auto_quantize` with method gradient, and the map is that of its
own solver.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
import transformers


def quantizer(way):
    """One format of weights alone, as noisescope rounds it: symmetric, in blocks or by row; its size with scales."""
    cfg = {"num_bits": way["bits"], "axis": 0}
    if way["block"]:
        cfg = {"num_bits": way["bits"], "block_sizes": {-1: way["block"]}}
    quiet = {"quantizer_name": "*input_quantizer", "enable": False}
    return {
        "quant_cfg": [{"quantizer_name": "*weight_quantizer", "cfg": cfg}, quiet],
        "algorithm": "max",
        "effective_bits": way["size"],
    }


def searched(asked, target, checkpoint):
    """The state of a search for one average."""
    model = transformers.AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32).eval()
    batches = [{name: torch.tensor(rows) for name, rows in batch.items()} for batch in asked["batches"]]
    for batch in batches:
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    _, state = mtq.auto_quantize(
        model,
        # The head stays as it is and is not in the sizes of noisescope either.
        constraints={"effective_bits": target, "cost": {"excluded_module_name_patterns": ["*lm_head*"]}},
        quantization_formats=[quantizer(way) for way in asked["formats"]],
        data_loader=batches,
        forward_step=lambda model, batch: model(**batch),
        loss_func=lambda output, batch: output.loss,
        disabled_layers=["*lm_head*"],
        num_calib_steps=1,
        num_score_steps=len(batches),
        checkpoint=str(checkpoint),
    )
    return state


def plain(state):
    """Every group with its modules, the bits of each choice, its score, and which one the solver took."""
    rows = []
    for name, stats in state["candidate_stats"].items():
        best = state["best"]["recipe"][name]
        rows.append(
            {
                "modules": list(stats["module_names"]),
                "bits": [float(form.num_bits) for form in stats["formats"]],
                "scores": [float(score) for score in stats["scores"]],
                "taken": next(i for i, form in enumerate(stats["formats"]) if form == best),
            }
        )
    return rows


def main():
    """One map for each target that is asked for."""
    asked, answer = (Path(name) for name in sys.argv[1:3])
    wanted = json.loads(asked.read_text())
    checkpoint = answer.with_suffix(".pth")
    checkpoint.unlink(missing_ok=True)
    maps = {}
    for target in wanted["targets"]:
        maps[str(target)] = plain(searched(wanted, target, checkpoint))
    answer.write_text(json.dumps({"maps": maps}))


if __name__ == "__main__":
    main()

"""Measures the sensitivity search of another quantizer in clean evaluations, inside that tool's environment.

Usage: python bench/quantizer_cost.py {modelopt,aimet} [--rounds N]

Prints CPU seconds as JSON. Two formats for each group of layers, as the tools do it by themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import warnings
from collections.abc import Callable
from functools import partial

import torch
from diagnosis_cost import LAYERS, VOCABULARY, WIDTH, Batches, batches, evaluate
from measuring import Variant, measure, qwen
from torch import nn

import noisescope as ns


def search(model: nn.Module, given: Batches, method: str) -> None:
    """ModelOpt's automatic choice between 4 and 8 bits at 6 on average."""
    import modelopt.torch.quantization as mtq

    options = {"loss_func": lambda output, batch: output.loss} if method == "gradient" else {}
    labelled = [{**batch, "labels": batch["input_ids"]} for batch in given]
    mtq.auto_quantize(
        copy.deepcopy(model),
        constraints={"effective_bits": 6.0},
        quantization_formats=[mtq.INT4_BLOCKWISE_WEIGHT_ONLY_CFG, mtq.INT8_DEFAULT_CFG],
        data_loader=labelled,
        forward_step=lambda one, batch: one(**batch) if method == "gradient" else one(**batch).logits,
        num_calib_steps=len(given),
        num_score_steps=len(given),
        method=method,
        **options,
    )


def analyse(model: nn.Module, given: Batches) -> None:
    """AIMET's analysis of one layer after the other."""
    from aimet_common.defs import CallbackFunc
    from aimet_torch.quant_analyzer import QuantAnalyzer

    forward = CallbackFunc(lambda one, _: evaluate(one, given))
    judge = CallbackFunc(lambda one, _: float(evaluate(one, given)[0].mean()))
    QuantAnalyzer(copy.deepcopy(model), given[0]["input_ids"], forward, judge).analyze()


def quietly(call: Callable[[], object]) -> Callable[[], None]:
    """Without what the tool prints."""

    def one() -> None:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()

    return one


def main() -> None:
    """Print the seconds of all variants."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tool", choices=("modelopt", "aimet"))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, given = qwen(LAYERS, WIDTH, VOCABULARY), batches()
    variants = [
        Variant("one clean evaluation", lambda: evaluate(model, given)),
        Variant("noisescope, screening alone", lambda: ns.screen(model, given)),
    ]
    if asked.tool == "modelopt":
        variants += [
            Variant(f"ModelOpt auto_quantize, {method}", quietly(partial(search, model, given, method)))
            for method in ("gradient", "kl_div")
        ]
    else:
        variants.append(Variant("AIMET QuantAnalyzer", quietly(partial(analyse, model, given))))
    # The first round of a search that takes minutes is as good as any other.
    print(json.dumps(measure(variants, asked.rounds, warm=False)))


if __name__ == "__main__":
    main()

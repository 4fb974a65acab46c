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
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from diagnosis_cost import LAYERS, SCALE, VOCABULARY, WIDTH, Batches, batches, evaluate
from measuring import Variant, measure, qwen
from torch import Tensor, nn

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


class FromIds(nn.Module):
    """A model as AIMET calls it: tokens in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids).logits


class Absent(ModuleType):
    """In the place of torchvision, which wants another torch. AIMET names classes of it that no language model has."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else Absent(name)


def analyse(model: nn.Module, given: Batches) -> None:
    """AIMET's analysis of one layer after the other, each alone in 8 bits, judged by KL to the clean run."""
    sys.modules.setdefault("torchvision", Absent("torchvision"))
    from aimet_torch.common.defs import CallbackFunc, QuantScheme
    from aimet_torch.quant_analyzer import QuantAnalyzer
    from aimet_torch.quantsim import QuantizationSimModel

    plain = FromIds(copy.deepcopy(model))

    def logs(one: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            return [one(batch["input_ids"]).log_softmax(-1) for batch in given]

    def harm(one: nn.Module, _: object) -> float:
        pairs = zip(clean, logs(one), strict=True)
        return float(torch.stack([(a.exp() * (a - b)).sum(-1).mean() for a, b in pairs]).mean())

    clean, first = logs(plain), given[0]["input_ids"]
    analyser = QuantAnalyzer(plain, first, CallbackFunc(lambda one, _: logs(one)), CallbackFunc(harm))
    simulated = QuantizationSimModel(plain, first, quant_scheme=QuantScheme.post_training_tf)
    simulated.compute_encodings(lambda one, _: logs(one), None)
    with tempfile.TemporaryDirectory() as folder:
        found = analyser.perform_per_layer_analysis_by_enabling_quant_wrappers(simulated, folder)
    assert len(found) > LAYERS, "layers were left out"
    assert max(found.values()) > 0, "nothing was quantized"


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
        Variant("noisescope, screening alone", lambda: ns.screen(model, given, scale=SCALE)),
        Variant("noisescope, the default", lambda: ns.diagnose(model, given, scale=SCALE, metric="kl_to_clean")),
    ]
    if asked.tool == "modelopt":
        variants += [
            Variant(f"ModelOpt auto_quantize, {method}", quietly(partial(search, model, given, method)))
            for method in ("gradient", "kl_div")
        ]
    else:
        variants.append(
            Variant("AIMET QuantAnalyzer, each layer enabled alone", quietly(partial(analyse, model, given)))
        )
    # The first round of a search that takes minutes is as good as any other.
    print(json.dumps(measure(variants, asked.rounds, warm=False)))


if __name__ == "__main__":
    main()

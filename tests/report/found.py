"""Records of a made-up model with planted harm, concluded by the diagnoses themselves: for the tests of reports."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from diagnose.synthetic import OPERATORS, World, ask, setting
from noisescope.core.records import Site
from noisescope.diagnose.channel import ChannelLevel, channel_level
from noisescope.diagnose.localization import Evidence, Localization, Suspect
from noisescope.diagnose.robustness import Robustness, RobustnessQuestion
from noisescope.diagnose.whole import Diagnosis, Question
from noisescope.diagnose.window import WindowQuestion
from noisescope.measure.outliers import ChannelSummary
from noisescope.measure.profile import Profile
from noisescope.report.origin import Origin

LAYERS, SAMPLES = 30, 250
HARM = {"linear": 0.4, "rms_norm": 0.11, "silu": 0.06, "softmax": 0.004, "matmul": 0.02}
BY_LAYER = {**dict.fromkeys(range(LAYERS), 0.003), 11: 0.08, 12: 0.3, 13: 0.08}
ORIGIN = Origin(
    model="made-up-30",
    workload="1000 questions",
    device="cpu",
    command="noisescope diagnose made-up-30 --data questions.jsonl --samples 1000 --out run",
    versions=(("noisescope", "0.1.0"), ("torch", "2.13.0")),
    settings=(("dtype", "bfloat16"), ("threads", "2")),
    fingerprints=(("model", "5f1c09e2"), ("workload", "c0ffee00")),
)


def paths() -> tuple[str, ...]:
    return tuple(f"model.layers.{layer}" for layer in range(LAYERS))


def summary(path: str, side: str, peaks: np.ndarray[Any, Any]) -> ChannelSummary:
    width = len(peaks)
    first, other = peaks.copy(), peaks.copy()
    other[peaks > 60] = 1.0  # the largest are large at the first token alone
    return ChannelSummary(
        path=path,
        side=side,
        tokens=4096,
        unplaced=0,
        peaks=tuple(peaks.tolist()),
        means=(0.0,) * width,
        deviations=tuple((peaks / 4).tolist()),
        medians=tuple((peaks / 6).tolist()),
        q99=tuple((peaks / 2).tolist()),
        place_peaks=(tuple(first.tolist()), (0.5,) * width, tuple(other.tolist())),
        peak_positions=(0,) * width,
        peak_tokens=(1,) * width,
        position_peaks=(float(peaks.max()),),
        sparsity=0.01,
        non_finite=(0,) * width,
    )


def channels(outliers: int = 2) -> ChannelLevel:
    draw = np.random.default_rng(3)
    modules, stream = [], []
    for layer, path in enumerate(paths()):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            peaks = draw.uniform(0.8, 1.2, 576)
            if name == "mlp.down_proj" and layer % 3 == 0:
                peaks[7 : 7 + outliers] = [15.0 * (1 + layer / 4), 80.0][:outliers]
            modules.append(summary(f"{path}.{name}", "input", peaks))
        peaks = draw.uniform(0.8, 1.2, 576) * (1 + layer)
        peaks[3] *= 40 if layer > 4 else 1
        stream.append(summary(path, "output", peaks))
    return channel_level(modules, paths(), stream=stream)


def profile() -> Profile:
    by_site = {}
    for layer in range(LAYERS):
        for operator in OPERATORS:
            by_site[Site(layer, operator, f"model.layers.{layer}.{operator}")] = BY_LAYER[layer] * HARM[operator] / 30
    by_site[Site(None, "linear", "lm_head")] = 2e-3
    return Profile(0.05, 1024, 1, by_site, {site: np.ones(2) * harm / 2 for site, harm in by_site.items()})


@functools.cache
def diagnosis(**changes: Any) -> Diagnosis:
    """All three levels; `failing` and `accuracy` go to the made-up model, the rest to the setting."""
    world = {name: changes.pop(name) for name in ("operators", "layers", "metric") if name in changes}
    planted = World(SAMPLES, **{"operators": HARM, "layers": BY_LAYER, **{k: thawed(v) for k, v in world.items()}})
    asked = setting(samples=SAMPLES, metric=planted.metric, **changes)
    windows = WindowQuestion(asked, predicted=planted.profile(LAYERS))
    return ask(Question(asked, windows=windows, channels=channels()), planted)


def thawed(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


@functools.cache
def healthy() -> Diagnosis:
    planted = World(SAMPLES)
    asked = setting(samples=SAMPLES)
    windows = WindowQuestion(asked, predicted=planted.profile(LAYERS))
    return ask(Question(asked, windows=windows, channels=channels(0)), planted)


@functools.cache
def broken() -> Diagnosis:
    """A model that answers the same question differently."""

    class Restless(World):
        def harm(self, trial: Any) -> float:
            return 0.05 if trial.injections else 0.0

    planted = Restless(SAMPLES, power=0.0)
    return ask(Question(setting(samples=SAMPLES)), planted)


@functools.cache
def robustness() -> Robustness:
    asked = setting(samples=SAMPLES, spent=0.0)
    levels = (0.0, 0.025, 0.05, 0.1)
    return ask(RobustnessQuestion(asked, levels=levels, tolerance=0.01), World(SAMPLES, operators=HARM))


def localization() -> Localization:
    def against(check: str, excess: float, hits: int) -> Evidence:
        return Evidence(check, excess, hits, 4096, f"{check}: {hits} of 4096 values checked are off")

    return Localization(
        "fault",
        (
            Suspect(
                12,
                "linear",
                "model.layers.12.mlp.down_proj",
                820.0,
                (against("product", 820.0, 96), against("repeat", float("inf"), 12)),
                (7,),
                0.75,
            ),
            Suspect(12, "rms_norm", "model.layers.12.input_layernorm", 2.5, (against("oracle", 2.5, 3),)),
        ),
        odd=(Suspect(None, "linear", "lm_head", 1.2, (against("product", 1.2, 1),)),),
        checked=271,
        unchecked=("model.rotary_emb: a table that no operator makes",),
        notes=("3 runs of every batch: a fault that fires in fewer than 63% of the runs may have been missed.",),
    )

"""The table of metrics: what fits what, one number for many samples, and what a loss is relative to."""

import math
import subprocess
import sys

import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure.metrics import METRICS, USUAL, fitting, metric_for, relative_degradation

SHAPES = ("question", "completion", "text", "choice")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_metric_is_found_for_the_shapes_it_fits_and_refused_for_others(shape):
    for name in METRICS:
        if name in fitting(shape):
            assert metric_for(name, shape).name == name
        else:
            with pytest.raises(BadInputError, match=f"{name} fits .* items, and these are {shape} items; .*nll"):
                metric_for(name, shape)
    assert USUAL[shape] in fitting(shape)


def test_what_fits_each_shape():
    everywhere = {"nll", "perplexity", "kl_to_clean", "top1_agreement", "embedding_shift"}
    assert set(fitting("text")) == set(fitting("completion")) == everywhere
    assert set(fitting("question")) == everywhere | {"accuracy"}
    assert set(fitting("choice")) == everywhere | {"accuracy", "accuracy_plain"}


def test_an_unknown_metric_is_refused_with_the_nearest_one():
    with pytest.raises(BadInputError, match=r"unknown metric 'acuracy'.* Did you mean 'accuracy'"):
        metric_for("acuracy", "choice")


def test_the_score_of_many_samples():
    assert METRICS["accuracy"].score([1.0, 0.0, 1.0, 1.0]) == 0.75
    # exp of the mean of log 2, log 8.
    assert METRICS["perplexity"].score([2.0, 8.0]) == pytest.approx(4.0)
    # Added one by one, the small ones would be lost.
    assert METRICS["nll"].score([1e16, 1.0, 1.0, -1e16]) == 0.5
    with pytest.raises(BadInputError, match="nll of no samples"):
        METRICS["nll"].score([])


@pytest.mark.parametrize(
    ("name", "shape", "clean", "noisy", "lost"),
    [
        ("accuracy", "choice", 0.8, 0.6, 0.25),
        ("accuracy", "choice", 0.8, 0.9, -0.125),
        ("nll", "text", 2.0, 2.5, 0.25),
        ("nll", "text", 2.0, 1.5, -0.25),
        ("perplexity", "text", 10.0, 11.0, 0.1),
        ("top1_agreement", "text", 1.0, 0.75, 0.25),
        # Rounding can leave the nll of something certain a little below 0.
        ("nll", "text", -0.5, 0.5, 2.0),
    ],
)
def test_degradation_is_the_share_that_is_lost(name, shape, clean, noisy, lost):
    assert relative_degradation(name, shape, clean, noisy) == pytest.approx(lost)


@pytest.mark.parametrize("shape", ["question", "choice"])
def test_a_clean_score_of_zero_leaves_nothing_to_lose_and_names_what_works(shape):
    with pytest.raises(BadInputError, match="clean accuracy is 0, so a degradation relative to it is undefined") as it:
        relative_degradation("accuracy", shape, 0.0, 0.0)
    offered = str(it.value).partition("items: ")[2].strip(".").split(", ")
    assert offered == ["nll", "perplexity", "kl_to_clean", "top1_agreement"]
    with pytest.raises(BadInputError, match="items: perplexity, kl_to_clean, top1_agreement"):
        relative_degradation("nll", shape, 0.0, 1.0)


@pytest.mark.parametrize("name", ["kl_to_clean", "embedding_shift"])
def test_what_is_zero_for_every_clean_run_is_itself_the_harm(name):
    with pytest.raises(BadInputError, match="its value is the harm itself"):
        relative_degradation(name, "text", 0.0, 0.3)


def test_the_clean_value_of_a_metric_against_clean_is_known():
    known = {name: metric.clean for name, metric in METRICS.items() if metric.against_clean}
    assert known == {"kl_to_clean": 0.0, "top1_agreement": 1.0, "embedding_shift": 0.0}
    assert all(math.isfinite(clean) for clean in known.values())


def test_metrics_are_named_without_torch():
    code = "import sys, noisescope.measure.metrics; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

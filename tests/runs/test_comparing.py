"""Two systems compared: every porting bug is named by layer and operator, healthy pairs pass."""

import pytest
import torch

import noisescope as ns
from cases import CASES, make
from noisescope.runs.capturing import capture
from noisescope.runs.comparing import compare, compare_models
from porting import BUGS


def texts(rows=4, length=16):
    return [{"input_ids": torch.randint(3, 120, (rows, length), generator=torch.Generator().manual_seed(1))}]


def by_captures(reference, other, folder):
    paths = [capture(model, texts(), folder / name) for model, name in ((reference, "a"), (other, "b"))]
    return compare(*paths)


def named(row):
    return row.layer, row.operator, row.path


@pytest.mark.parametrize("name", BUGS)
def test_a_porting_bug_is_named_by_layer_and_operator(name, tmp_path):
    bug = BUGS[name]
    for found in (compare_models(*bug.pair(), texts()), by_captures(*bug.pair(), tmp_path)):
        assert found.verdict == "fail"
        suspect = found.suspects[0]
        assert (suspect.layer, suspect.path) == (bug.layer, bug.path), found
        assert suspect.operator in bug.operators, found
        assert named(found.first_divergent) == named(suspect)
        assert bug.symptom in suspect.symptom
        assert names_of(found) == {(bug.layer, suspect.operator)}, found


def names_of(found):
    return {(row.layer, row.operator) for row in found.suspects}


@pytest.mark.parametrize("family", CASES)
def test_the_same_model_twice_is_identical_everywhere(family):
    found = compare_models(make(family), make(family), texts())
    assert found.verdict == "pass"
    assert all(row.contrast.identical and row.excess == 0.0 for row in found.rows)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize(
    ("attention", "dtype"),
    [("sdpa", torch.float32), ("eager", torch.bfloat16), ("sdpa", torch.bfloat16), ("sdpa", torch.float16)],
)
def test_healthy_systems_show_nothing_but_rounding(family, attention, dtype):
    found = compare_models(make(family), make(family, attention, dtype), texts(), max_mape=1.0)
    assert not found.suspects, found
    assert found.verdict == "pass"
    assert max(row.excess for row in found.rows if row.figures) < 1.0


def faulty(kind, magnitude, family="llama", dtype=torch.float32, **params):
    """A comparison with a machine that has one fault, in one linear layer of layer 1."""
    healthy, model = make(family, "sdpa"), make(family, "sdpa", dtype)
    where = model.model.layers[1].mlp.up_proj
    with ns.inject(where, ns.fault(kind, magnitude, **params), operators="linear"):
        return compare_models(healthy, model, texts(), max_mape=10.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "magnitude", "symptom"),
    [
        ("stuck_channel", 0.5, "channel 5 is stuck"),
        ("saturation", 0.7, "(saturation)"),
        ("dead_zone", 0.3, "are 0 that are not"),
        ("gain_drift", 0.1, "times those of the reference"),
        ("offset", 0.3, ""),
        ("spike", 0.3, ""),
    ],
)
def test_a_fault_of_the_machine_is_named_with_its_symptom(kind, magnitude, symptom, dtype):
    found = faulty(kind, magnitude, dtype=dtype, **({"channel": 5} if kind == "stuck_channel" else {}))
    assert found.verdict == "fail"
    (suspect,) = found.suspects
    assert named(suspect) == (1, "linear", "model.layers.1.mlp.up_proj")
    assert symptom in suspect.symptom
    if kind == "stuck_channel":
        assert suspect.contrast.channels[0].start == 5
        assert suspect.contrast.blocks[0].start == 0
        assert suspect.contrast.channels[0].mape > 5 * suspect.mape, "the figure over all channels hides it"

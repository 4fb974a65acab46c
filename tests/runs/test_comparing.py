"""Two systems compared: every porting bug is named by layer and operator, healthy pairs pass."""

import copy
from dataclasses import replace

import pytest
import torch

import noisescope as ns
from cases import CASES, make
from noisescope.diagnose.comparison import RISE
from noisescope.measure.contrast import contrasts
from noisescope.runs.capturing import Keeping, capture, captured
from noisescope.runs.comparing import compare, compare_models
from noisescope.runs.systems import as_system
from porting import BUGS, stale_shard


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
    measured = compare_models(*bug.pair(), texts())
    assert growth(measured) < RISE / 2, "what an estimate takes for an operator's own is never that much less"
    for found in (measured, by_captures(*bug.pair(), tmp_path)):
        assert found.verdict == "fail"
        suspect = found.suspects[0]
        assert (suspect.layer, suspect.path) == (bug.layer, bug.path), found
        assert suspect.operator in bug.operators, found
        assert named(found.first_divergent) == named(suspect)
        assert bug.symptom in suspect.symptom
        assert names_of(found) == {(bug.layer, suspect.operator)}, found


def growth(found):
    """How much an error that is only carried on rises above all before it, where there is one."""
    rises, before = [0.0], 0.0
    for row in found.rows:
        if before > 1.0 and row.verdict == "inherited":
            rises.append(row.excess / before)
        before = max(before, row.excess if row.figures else 0.0)
    return max(rises)


@pytest.mark.parametrize("lengths", [[6], pytest.param([49, 6, 30], marks=pytest.mark.slow)])
def test_a_healthy_pair_is_not_accused_on_few_texts(lengths):
    """Of few tokens, or of a first text unlike the others, one draw of a dither leaves some channel far too little."""
    loaded = ns.load("demo", dtype="float32")
    line = "The river rose after three days of rain, so the villagers moved their boats, tools and animals uphill. "
    ids = loaded.tokenizer(line * 3).input_ids
    batches = [{"input_ids": torch.tensor([ids[k : k + length]])} for k, length in enumerate(lengths)]
    keeping = Keeping(megabytes=1e3)
    one = captured(loaded.model, batches, keeping)
    two = captured(copy.deepcopy(loaded.model).double(), batches, replace(keeping, dither=False))
    worst = max(contrasts(one, two), key=lambda found: found.excess)
    assert worst.excess < 0.8, worst


def names_of(found):
    return {(row.layer, row.operator) for row in found.suspects}


@pytest.mark.parametrize("family", CASES)
def test_the_same_model_twice_is_identical_everywhere(family):
    found = compare_models(make(family), make(family), texts())
    assert found.verdict == "pass"
    assert all(row.contrast.identical and row.excess == 0.0 for row in found.rows)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize(("attention", "dtype"), [("sdpa", torch.float32), ("eager", torch.bfloat16)])
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


def test_float16_is_healthy_and_its_limit_is_told_apart_from_a_fault():
    found = compare_models(make("llama"), make("llama", "sdpa", torch.float16), texts(), max_mape=1e-5)
    assert found.verdict == "fail" and not found.suspects and found.first_divergent is None
    assert found.above_limit and "no operator is at fault" in str(found)


def test_a_second_fault_behind_the_first_is_found_where_inputs_can_be_shared():
    healthy, spoiled = make("llama"), make("llama")
    spoiled.model.layers[0].input_layernorm.variance_epsilon = 1e-5
    stale_shard(spoiled)
    found = compare_models(healthy, spoiled, texts())
    assert names_of(found) == {(0, "rms_norm"), (1, "linear")}
    assert "was measured" in found.how
    inherited = [row for row in found.rows if row.verdict == "inherited"]
    assert inherited and all(row.local < 1.0 < row.excess for row in inherited)


def test_chosen_layers_alone_are_looked_at(tmp_path):
    paths = [
        capture(model, texts(), tmp_path / name)
        for model, name in ((make("llama"), "a"), (BUGS["stale shard"].pair()[1], "b"))
    ]
    assert compare(*paths, layers=[0]).verdict == "pass"
    assert {row.layer for row in compare(*paths, layers=[1]).rows} == {1}
    with pytest.raises(ns.NoisescopeError, match="0 to 1"):
        compare(*paths, layers=[7])


def test_the_curve_adds_up_over_the_layers():
    found = compare_models(make("llama"), make("llama", "eager", torch.bfloat16), texts())
    ends = {row.layer: row.mape for row in found.rows if row.operator == "residual" and row.role == "output"}
    assert [point.layer for point in found.curve] == [0, 1]
    assert found.curve[1].total == pytest.approx(ends[0] + ends[1])


class Fused(torch.nn.Module):
    """An MLP whose gate and up are one product, as many kernels have it."""

    def __init__(self, mlp):
        super().__init__()
        self.both = torch.nn.Linear(32, 128, bias=False)
        self.both.weight.data = torch.cat([mlp.gate_proj.weight.data, mlp.up_proj.weight.data])
        self.act_fn, self.down_proj = mlp.act_fn, mlp.down_proj

    def forward(self, x):
        gate, up = self.both(x).chunk(2, -1)
        return self.down_proj(self.act_fn(gate) * up)


def test_another_order_of_operators_is_no_difference(tmp_path):
    other = make("llama", "eager")
    for layer in other.model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(mlp.up_proj(x) * mlp.act_fn(mlp.gate_proj(x)))
    for found in (compare_models(make("llama"), other, texts()), by_captures(make("llama"), other, tmp_path)):
        assert found.verdict == "pass", found
        assert not found.only_in_reference and not found.only_in_other


def test_a_fused_product_has_no_counterpart_and_the_rest_is_compared(tmp_path):
    other = make("llama")
    for layer in other.model.layers:
        layer.mlp = Fused(layer.mlp)
    for found in (compare_models(make("llama"), other, texts()), by_captures(make("llama"), other, tmp_path)):
        assert found.verdict == "pass", found
        assert {key.rpartition(".")[2] for key in found.only_in_reference} >= {"gate_proj:output", "up_proj:output"}
        assert all("mlp.both" in key for key in found.only_in_other)
        assert any(row.path.endswith("mlp.down_proj") for row in found.rows)


def test_padding_is_not_compared():
    ids = texts(3, 10)[0]["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    batches = [{"input_ids": ids, "attention_mask": mask}]
    found = compare_models(make("qwen2", "eager"), make("qwen2", "sdpa"), batches)
    assert found.verdict == "pass", found
    head = next(row for row in found.rows if row.path == "lm_head" and row.role == "output")
    assert head.contrast.basis == "16 of 26 rows"


def test_capturing_changes_no_bit_and_leaves_nothing_behind(tmp_path):
    for family, attention in (("llama", "sdpa"), ("mixtral", "eager"), ("gpt2", "eager")):
        model = make(family, attention, torch.bfloat16)
        with torch.no_grad():
            before = model(**texts()[0]).logits
            hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
            seen = []
            handle = model.register_forward_hook(lambda _m, _a, out, seen=seen: seen.append(out.logits.clone()))
            capture(model, texts(), tmp_path / "c", keeping=Keeping(dither=False))
            handle.remove()
            assert torch.equal(seen[0], before) and torch.equal(model(**texts()[0]).logits, before)
        assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_layers_pass_and_a_bug_inside_one_is_found_at_its_border():
    model = make("llama", "sdpa")
    found = compare_models(model, as_system(model, "compiled"), texts())
    assert found.verdict == "pass", found
    assert {row.path for row in found.rows} >= {"model.layers.0", "model.layers.1", "lm_head"}
    spoiled = BUGS["stale shard"].pair()[1]
    found = compare_models(model, as_system(spoiled, "compiled"), texts())
    assert [(row.layer, row.path) for row in found.suspects] == [(1, "model.layers.1")]

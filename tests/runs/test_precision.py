"""A precision map of a small model: within its budget, better than a blind one, kept, and the same when repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cases import batches, make, sharp
from noisescope.core.errors import BadInputError
from noisescope.core.precision import PrecisionMap, WeightFormat
from noisescope.measure.batches import Samples
from noisescope.measure.given import given
from noisescope.report.html import to_html
from noisescope.report.view import Bars, Heatmap
from noisescope.runs import precision
from noisescope.runs.kept_keys import DIAGNOSIS, PRECISION
from noisescope.runs.precision import EVENLY, METRIC, THIS, BitsWanted, layer_losses, precision_map, write_recipes
from noisescope.runs.reporting import view_of
from noisescope.sweep.store import Request, Store
from report import found as example
from runs.test_reporting import ABOUT

FORMATS = tuple(map(WeightFormat.of, ("int4", "int8", "bf16")))


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return sharp(6)


def samples_of(model: torch.nn.Module, rows: int = 48) -> Samples:
    return given(model, batches(rows=rows), METRIC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run", ABOUT)


def by_name(found: PrecisionMap) -> dict[str, float]:
    return {row.name: row.estimate for row in found.measured}


@pytest.mark.parametrize("target", [5.0, 6.0, 7.0])
def test_it_keeps_the_target_and_costs_less_than_an_even_mix(
    model: torch.nn.Module, store: Store, target: float
) -> None:
    found = precision_map(model, samples_of(model), BitsWanted(target), store)
    assert target - 0.2 < found.average_bits <= target and bool(found.remark) == (found.average_bits < 0.998 * target)
    assert len(found.choices) == 24
    cost = by_name(found)
    assert set(cost) == {THIS, "int4", "int8", EVENLY}
    assert cost["int8"] < cost[THIS] < cost["int4"] and cost[THIS] < cost[EVENLY]
    even = next(row for row in found.measured if row.name == EVENLY)
    assert even.above is not None and even.above[1] > 0.0
    assert found.harm == pytest.approx(cost[THIS], rel=0.5)


def test_another_target_predicts_nothing_anew(
    model: torch.nn.Module, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = precision_map(model, samples_of(model), BitsWanted(6.0, measure=False), store)
    monkeypatch.setattr(precision, "screen_weights", None)
    again = precision_map(model, samples_of(model), BitsWanted(6.0, measure=False), store)
    other = precision_map(model, samples_of(model), BitsWanted(9.0, FORMATS[1:], measure=False), store)
    assert again == first and other.average_bits > 8.0


def test_a_format_that_is_new_is_predicted_and_the_others_are_kept(model: torch.nn.Module, store: Store) -> None:
    precision_map(model, samples_of(model), BitsWanted(6.0, measure=False), store)
    more = BitsWanted(6.0, (*FORMATS, WeightFormat.of("int4:16")), measure=False)
    found = precision_map(model, samples_of(model), more, store)
    assert [option.format for option in found.choices[0].options] == ["int4", "int8", "bf16", "int4:16"]
    assert all(choice.options[3].harm < choice.options[0].harm for choice in found.choices)


def test_the_weights_are_their_own_again(model: torch.nn.Module, store: Store) -> None:
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    precision_map(model, samples_of(model), BitsWanted(6.0), store)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_the_folder_reports_the_map_and_holds_the_files(model: torch.nn.Module, store: Store) -> None:
    found = precision_map(model, samples_of(model), BitsWanted(6.0, (*FORMATS, WeightFormat.of("uint4"))), store)
    store.save_finding(PRECISION, found, Request("noisescope bits run", "tiny"))
    store.save_finding(DIAGNOSIS, example.diagnosis())
    paths, unsaid = write_recipes(found, store.folder)
    assert len(paths) == 5 and all(path.stat().st_size > 100 for path in paths)
    hint, missing = unsaid
    assert "--formats int4,int5,int6,int8,bf16" in hint
    assert missing == "modelopt.yaml: the tool has no word for uint4, so its layers are left out"
    view = view_of(store)
    section = next(section for section in view.sections if section.key == "precision")
    heatmap = next(block for block in section.blocks if isinstance(block, Heatmap))
    assert heatmap.layers == tuple(range(6)) and heatmap.operators[0] == "q_proj+k_proj+v_proj"
    shown = [cell.value for row in heatmap.cells for cell in row if cell is not None]
    assert len(shown) == 24 and None not in shown
    bars = next(block for block in section.blocks if isinstance(block, Bars))
    assert [bar.figure.value for bar in bars.bars] == [row.estimate for row in found.measured]
    assert "Precision map" in to_html(view)


def test_thresholds_go_by_the_diagnosis_in_the_folder(model: torch.nn.Module, store: Store) -> None:
    with pytest.raises(BadInputError, match="holds no diagnosis of layers"):
        precision_map(model, samples_of(model), BitsWanted(6.0, rule="thresholds", measure=False), store)
    diagnosis = example.diagnosis()
    store.save_finding(DIAGNOSIS, diagnosis)
    losses = layer_losses(store, set(range(6)))
    for layer, loss in losses.items():
        around = [w.answer.harm.estimate for w in diagnosis.windows if layer in w.layers and w.answer.harm is not None]
        assert loss <= max(0.0, min(around, default=1.0))
    found = precision_map(model, samples_of(model), BitsWanted(7.0, rule="thresholds", measure=False), store)
    assert found.average_bits <= 7.0 and found.rule == "thresholds"
    by_layer = {choice.group.layer: choice.format for choice in found.choices}
    assert {choice.format == by_layer[choice.group.layer] for choice in found.choices} == {True}


def test_too_small_a_target_and_too_few_samples_are_refused(model: torch.nn.Module, store: Store) -> None:
    with pytest.raises(BadInputError, match="smallest formats take"):
        precision_map(model, samples_of(model), BitsWanted(4.0, measure=False), store)
    with pytest.raises(BadInputError, match="3 samples"):
        precision_map(model, samples_of(model, 3), BitsWanted(6.0), store)


def test_bits_that_are_not_needed_are_said_to_be_left(store: Store) -> None:
    model = make("llama", dtype=torch.bfloat16)
    found = precision_map(model, samples_of(model), BitsWanted(16.5, measure=False), store)
    assert {choice.format for choice in found.choices} == {"bf16"}
    assert "no larger format lowers" in found.remark

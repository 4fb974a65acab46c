"""The integrated diagnosis under the names that users of the verl fork know: planted causes are in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from cases import batches, make, sharp
from letters import letters
from noisescope.core.errors import BadInputError
from noisescope.report.wording import points
from noisescope.runs.gathering import Gatherer
from noisescope.verl.diagnostic import IntegratedDiagnostic

PARTS = ["executive_summary", "operator_analysis", "layer_analysis", "channel_analysis", "recommendations"]
TEXTS = ["the sun is in the sea", "a bell rings", "there are ten hens", "rain in the north"]
PLANTED = "model.layers.2.self_attn.o_proj"


def planted() -> nn.Module:
    model = sharp()
    with torch.no_grad():
        model.get_submodule(PLANTED).weight[11] *= 300.0
    return model


@pytest.fixture(scope="module")
def run() -> IntegratedDiagnostic:
    diagnostic = IntegratedDiagnostic(planted(), batches(), batches(rows=16))
    diagnostic.run_full_diagnosis(noise_scale=0.05, window_size=2, outlier_threshold=12.0, exhaustive=True, seeds=1)
    return diagnostic


@pytest.fixture(scope="module")
def report(run: IntegratedDiagnostic) -> dict[str, Any]:
    return run.generate_report()


def test_the_report_has_the_five_sections(report: dict[str, Any]) -> None:
    assert list(report) == ["format", "version", *PARTS]
    summary = report["executive_summary"]
    points = 30 * summary["critical_operators"] + 25 * summary["avalanche_points"] + 5 * summary["outlier_percent"]
    assert summary["risk_score"] == pytest.approx(points)
    assert summary["risk_level"] == ("HIGH" if points > 100 else "MODERATE" if points > 50 else "LOW")
    assert (summary["noise_scale"], summary["samples"], summary["zero_noise_control"]) == (0.05, 40, "exact")
    assert summary["clean_score"]["estimate"] == 1.0


def test_every_operator_and_every_window_is_in_it_with_its_interval(report: dict[str, Any]) -> None:
    operators = {part["operator"]: part for part in report["operator_analysis"]}
    assert set(operators) == {"linear", "matmul", "softmax", "silu", "rms_norm"}
    windows = report["layer_analysis"]["windows"]
    assert [window["layers"] for window in windows] == [[start, start + 1] for start in range(5)]
    for part in [*operators.values(), *windows]:
        assert part["harm"]["low"] <= part["harm"]["estimate"] <= part["harm"]["high"]
        assert part["harm"]["samples"] > 0
    score, harm = operators["linear"]["score"], operators["linear"]["harm"]
    assert score["estimate"] == pytest.approx(harm["estimate"] / 0.05)


def test_a_planted_outlier_channel_is_named_and_something_is_to_be_done_about_it(report: dict[str, Any]) -> None:
    channels = report["channel_analysis"]
    (module,) = [one for one in channels["modules"] if (one["path"], one["side"]) == (PLANTED, "output")]
    assert (module["layer"], module["outlier_indices"]) == (2, [11])
    assert module["outlier_ratios"] == [module["max_ratio"]] and module["max_ratio"] > 12
    # The calibration data are others than the test data: 16 rows of 10 tokens.
    assert channels["tokens"] == 160
    recommended = [one for one in report["recommendations"] if "channel" in (one["component"] + one["issue"])]
    assert recommended and all(one["evidence"] for one in recommended)


def test_recommendations_are_sorted_and_complete(report: dict[str, Any]) -> None:
    urgency = [one["priority"] for one in report["recommendations"]]
    assert urgency == sorted(urgency)
    assert all(one["component"] and one["issue"] and one["action"] for one in report["recommendations"])


def test_nothing_planted_no_channel_is_named() -> None:
    diagnostic = IntegratedDiagnostic(sharp(), batches())
    diagnostic.run_full_diagnosis(mode="channel")
    found = diagnostic.generate_report()
    assert found["channel_analysis"]["modules"] == [] and found["channel_analysis"]["outlier_percent"] == 0.0
    assert found["operator_analysis"] == found["layer_analysis"]["windows"] == []


def test_what_is_saved_is_read_back(run: IntegratedDiagnostic, report: dict[str, Any], tmp_path: Path) -> None:
    path = run.save_report(tmp_path / "deep" / "report.json")
    assert IntegratedDiagnostic.load_report(path) == report == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda report: report.update(version=2), r"version 2: this noisescope reads version 1"),
        (lambda report: report.update(format="other"), "expected a JSON object whose format"),
        (lambda report: report.pop("layer_analysis"), r"\$: Sections lacks layer_analysis"),
        (lambda report: report["executive_summary"].update(samples="40"), r"\$.executive_summary.samples: '40'"),
        (lambda report: report["operator_analysis"][0]["harm"].pop("low"), r"operator_analysis\[0\].harm"),
    ],
    ids=["version", "format", "section", "type", "field"],
)
def test_what_is_not_a_report_is_refused_by_the_place(
    change: Any, message: str, report: dict[str, Any], tmp_path: Path
) -> None:
    broken = json.loads(json.dumps(report))
    change(broken)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(BadInputError, match=message):
        IntegratedDiagnostic.load_report(path)


def test_a_file_that_is_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"missing\.json"):
        IntegratedDiagnostic.load_report(tmp_path / "missing.json")
    (tmp_path / "torn.json").write_text('{"format": ')
    with pytest.raises(BadInputError, match=r"torn\.json: not JSON"):
        IntegratedDiagnostic.load_report(tmp_path / "torn.json")


def test_the_pages_say_what_the_sections_say(run: IntegratedDiagnostic, report: dict[str, Any], tmp_path: Path) -> None:
    words = run.save_report(tmp_path / "report.md").read_text()
    page = run.save_report(tmp_path / "report.HTML").read_text()
    for text in (words, page):
        assert f"score {points(report['executive_summary']['risk_score'])}" in text
        assert all(one["action"] in text for one in report["recommendations"])
    assert page.startswith("<!DOCTYPE html>")


def test_another_ending_is_refused(run: IntegratedDiagnostic, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"'\.txt'.*\.json"):
        run.save_report(tmp_path / "report.txt")
    assert not list(tmp_path.iterdir())


def test_there_is_no_report_before_the_diagnosis(tmp_path: Path) -> None:
    diagnostic = IntegratedDiagnostic(make("llama"), batches())
    for ask in (diagnostic.generate_report, lambda: diagnostic.save_report(tmp_path / "report.json")):
        with pytest.raises(BadInputError, match=r"call run_full_diagnosis\(\) first"):
            ask()


def test_a_run_folder_is_gone_on_with(tmp_path: Path) -> None:
    diagnostic = IntegratedDiagnostic(sharp(), batches(), batches())
    first = diagnostic.run_full_diagnosis(out=tmp_path / "run", mode="operator")
    held = sorted(path.name for path in (tmp_path / "run").glob("readings-*"))
    assert diagnostic.run_full_diagnosis(out=tmp_path / "run", mode="operator") == first
    assert sorted(path.name for path in (tmp_path / "run").glob("readings-*")) == held != []


def test_wrong_options_are_named() -> None:
    diagnostic = IntegratedDiagnostic(make("llama"), batches())
    with pytest.raises(BadInputError, match="unknown option of diagnose 'scales'"):
        diagnostic.run_full_diagnosis(scales=0.1)
    with pytest.raises(BadInputError, match="noise_scale"):
        diagnostic.run_full_diagnosis(noise_scale=0.1, scale=0.1)


def tensors_of(data: Any, **more: Any) -> list[dict[str, Tensor]]:
    samples = Gatherer(sharp(), **more).samples("test_data", data)
    return [batch.inputs for batch in samples.batches()]


def test_batches_come_as_a_list_alone_or_from_a_loader() -> None:
    listed = batches()
    assert len(tensors_of(listed)) == 5 and len(tensors_of(listed[0])) == 1
    rows = [{"input_ids": row} for row in listed[0]["input_ids"]]
    (loaded,) = tensors_of(DataLoader(rows, batch_size=8))
    assert torch.equal(loaded["input_ids"], listed[0]["input_ids"])
    (tokenised,) = tensors_of(letters()(["abc", "xyz"], return_tensors="pt"))
    assert tokenised["input_ids"].shape == (2, 3)


def test_texts_and_items_are_tokenised(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    from_texts = Gatherer(sharp(), letters()).samples("test_data", TEXTS)
    assert len(from_texts) == 4 and from_texts.metric.name == "nll"
    for same in ([{"text": text} for text in TEXTS], file, str(file)):
        assert Gatherer(sharp(), letters()).samples("test_data", same).key == from_texts.key
    items = [{"question": f"what is {n} and 1?", "answer": str(n + 1)} for n in range(3)]
    assert Gatherer(sharp(), letters()).samples("test_data", items).metric.name == "accuracy"


def test_a_second_copy_of_a_text_is_left_out() -> None:
    assert len(Gatherer(sharp(), letters()).samples("test_data", [*TEXTS, *TEXTS])) == len(TEXTS)


def test_texts_are_diagnosed_with_calibration_data_of_another_kind() -> None:
    diagnostic = IntegratedDiagnostic(sharp(), TEXTS, batches(rows=16), tokenizer=letters())
    diagnostic.run_full_diagnosis(seeds=1)
    report = diagnostic.generate_report()
    assert report["executive_summary"]["metric"] == "nll" and report["channel_analysis"]["tokens"] == 160


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "test_data is empty; expected a list of batches"),
        ("a text", "test_data is str 'a text'; expected"),
        (7, "test_data is int '7'; expected"),
        (TEXTS, "test_data holds text items, which need a tokenizer"),
        ([torch.ones(2, 3)], "test_data, item 1 is Tensor; expected"),
        ([{"input_ids": [3, 4, 5]}], r"test_data, item 1: input_ids is no tensor; pass return_tensors='pt'"),
        ([{"prompt": "a"}], "test_data, item 1: the fields prompt; expected"),
        (["a", {"question": "b", "answer": "1"}], "test_data.* of question and text items: expected one shape"),
        (Path("no_such.jsonl"), "no_such.jsonl: No such file"),
    ],
    ids=["empty", "text", "number", "no tokenizer", "tensor", "lists", "fields", "shapes", "file"],
)
def test_data_that_cannot_be_used_are_named(data: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        IntegratedDiagnostic(make("llama"), data)


def test_nothing_is_left_on_the_model_and_its_mode_is_kept() -> None:
    model = sharp().train()
    IntegratedDiagnostic(model, batches(rows=16)).run_full_diagnosis(mode="channel")
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

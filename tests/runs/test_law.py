"""A screened diagnosis says how far the law that it predicted with holds, and counts what it cost to find out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import noisescope as ns
from cases import batches, sharp
from noisescope.core.records import Finding
from noisescope.diagnose.whole import Diagnosis
from noisescope.measure.given import given
from noisescope.runs import law
from noisescope.runs.law import LawCheck, law_finding
from noisescope.sweep.progress import Progress
from noisescope.sweep.screening import screen
from noisescope.sweep.store import About, Store

SILENT = Progress("law", None)


def told(found: Diagnosis) -> Finding:
    (one,) = [finding for finding in found.findings if finding.statement.startswith("The quadratic law")]
    return one


def test_it_holds_for_little_noise_and_a_warning_says_where_it_ends_for_much() -> None:
    model = sharp()
    little = told(ns.diagnose(model, batches(), mode="layer", scale=0.005))
    assert little.severity == "note" and "is left by" not in little.statement
    much = told(ns.diagnose(model, batches(), mode="layer", scale=2.0))
    assert much.severity == "warning" and "is left by 3 of 3 groups" in much.statement


def test_what_is_not_screened_is_told_nothing_of_it() -> None:
    found = ns.diagnose(sharp(), batches(), mode="layer", exhaustive=True)
    assert not any("quadratic law" in finding.statement for finding in found.findings)


def test_the_worst_group_of_each_of_three_operators_is_asked() -> None:
    check = check_of(sharp())
    harm = check.profile.harm
    assert len({operator for _, operator in check.groups}) == len(check.groups) == 3
    for layer, operator in check.groups:
        assert harm[layer, operator] == max(
            value for (at, name), value in harm.items() if name == operator and at is not None
        )
    assert [harm[group] for group in check.groups] == sorted((harm[group] for group in check.groups), reverse=True)


def test_its_cost_is_what_goes_through_the_layers(tmp_path: Path) -> None:
    model, check = sharp(), check_of(sharp())
    rows = 0

    def see(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal rows
        rows += inputs[0].shape[0] * inputs[0].shape[1]

    for layer in model.model.layers:
        layer.register_forward_pre_hook(see)
    with Store(tmp_path, About("m", "w")) as store:
        law_finding(check, model, store, SILENT)
    assert rows / check.layers == pytest.approx(check.tokens(model), rel=0.1)


def test_it_is_asked_once_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, check = sharp(), check_of(sharp())
    with Store(tmp_path, About("m", "w")) as store:
        first = law_finding(check, model, store, SILENT)
        monkeypatch.setattr(law, "Responses", None)
        assert law_finding(check, model, store, SILENT) == first


def check_of(model: torch.nn.Module) -> LawCheck:
    samples = given(model, batches())
    return LawCheck(samples, screen(model, batches(), scale=0.05), 0.05, 6)

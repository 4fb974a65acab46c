"""A whole experiment on very small models: resumed after a kill, refused after a change, reported in every format."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from noisescope.cli.main import main
from noisescope.core.errors import BadInputError
from noisescope.core.experiment import NONE, Recipe
from noisescope.diagnose import experiment as judging
from noisescope.diagnose.experiment import Experiment
from noisescope.measure.word_problems import problems
from noisescope.report.document import from_json, to_json
from noisescope.report.html import to_html
from noisescope.report.markdown import to_markdown
from noisescope.report.view import Curves, Table
from noisescope.runs import experiment
from noisescope.runs.experiment import ExperimentError, ExperimentWanted, run_experiment
from noisescope.runs.reporting import view_of
from noisescope.sweep import arms
from noisescope.sweep.arms import trained_arm
from noisescope.sweep.journal import RunFolderError
from noisescope.sweep.store import Store
from noisescope.sweep.study import Interrupted

RECIPE = Recipe(
    width=16, layers=2, largest=12, steps=3, rows=4, examples=60, items=12, between=6, seeds=2, draws=1, rate=1e-2
)
E8 = ExperimentWanted("e8", RECIPE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    folder = tmp_path_factory.mktemp("runs") / "e8"
    return folder, run_experiment(E8, folder, asked="noisescope experiment e8")


def copied(run: tuple[Path, Experiment], to: Path) -> Path:
    return Path(shutil.copytree(run[0], to / "copy"))


def test_every_arm_is_trained_from_every_seed_and_evaluated_at_every_level(run: tuple[Path, Experiment]) -> None:
    folder, found = run
    assert len(list((folder / "arms").iterdir())) == 5 * 2
    (world,) = found.worlds
    assert [arm.name for arm in world.arms] == ["none", "both", "forward only", "backward only", "both at 2.5 %"]
    assert all([at.level for at in arm.levels] == [0.0, 0.05, 0.1] for arm in world.arms)
    counts = {arm.name: (arm.forward, arm.backward) for arm in world.arms}
    # 28 operators, 3 steps, 2 seeds.
    assert counts["none"] == (0, 0) and counts["both"] == (168, 168) and counts["forward only"] == (168, 0)
    assert counts["backward only"] == (0, 168)
    assert dict(world.arms[4].realised) == pytest.approx({"forward": 0.025, "backward": 0.025}, rel=0.1)
    assert [one.state for one in found.pretest] == ["before training"] * 3 + ["after training"] * 3
    assert all(one.verdict == "undecided" and "too few" in one.why for one in world.claims)


def test_the_same_call_finds_everything_and_trains_nothing(
    run: tuple[Path, Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "train", lambda *_: pytest.fail("trained again"))
    before = len(Store(run[0]).readings())
    assert run_experiment(E8, run[0]) == run[1] and len(Store(run[0]).readings()) == before


def test_what_was_lost_is_done_again_and_the_report_is_the_same(run: tuple[Path, Experiment], tmp_path: Path) -> None:
    """As after a kill: an arm that was not finished, an evaluation that was cut off in its line, no conclusion."""
    folder = copied(run, tmp_path)
    shutil.rmtree(next((folder / "arms").glob("both-1-*")))
    (folder / "arms" / ".both-1-0-1-x.part").mkdir()
    (folder / "finding-experiment.json").unlink()
    for journal in folder.glob("readings-*"):
        journal.write_bytes(journal.read_bytes()[: journal.stat().st_size * 2 // 3])
    assert run_experiment(E8, folder) == run[1]
    assert to_json(view_of(Store(folder))).split('"worlds"')[0]


def test_an_interruption_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def stop(*job: object) -> Path:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        return trained_arm(*job)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(experiment, "trained_arm", stop)
        with pytest.raises(Interrupted, match="Repeat the command"):
            run_experiment(E8, tmp_path / "run")
    assert len(list((tmp_path / "run" / "arms").iterdir())) == 3


def test_claims_and_recipe_are_fixed_before_anything_is_seen(
    run: tuple[Path, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(run, tmp_path)
    softer = (replace(judging.CLAIMS["e8"][0], limit=0.01), *judging.CLAIMS["e8"][1:])
    with monkeypatch.context() as patched:
        patched.setattr(experiment, "CLAIMS", {"e8": softer})
        with pytest.raises(RunFolderError, match="claims"):
            run_experiment(E8, folder)
    with pytest.raises(RunFolderError, match="recipe"):
        run_experiment(ExperimentWanted("e8", replace(RECIPE, seeds=3)), folder)


def test_an_evaluation_in_which_no_noise_landed_concludes_nothing(
    run: tuple[Path, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(run, tmp_path)
    for journal in folder.glob("readings-*"):
        journal.unlink()
    (folder / "finding-experiment.json").unlink()
    true = experiment.noise
    monkeypatch.setattr(experiment, "noise", lambda scale: true(scale=scale * 1e-12))
    with pytest.raises(ExperimentError, match="NoEffectError"):
        run_experiment(E8, folder)
    assert Store(folder).load_finding("experiment", Experiment) is None


def test_levels_that_the_claims_need_have_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"0\.05"):
        run_experiment(ExperimentWanted("e8", replace(RECIPE, levels=(0.0, 0.1))), tmp_path / "run")


@pytest.mark.slow  # Worker processes load everything anew.
def test_workers_change_nothing(run: tuple[Path, Experiment], tmp_path: Path) -> None:
    lost = copied(run, tmp_path)
    for name in ("none-0", "both-0"):
        shutil.rmtree(next((lost / "arms").glob(f"{name}-*")))
    for journal in lost.glob("readings-*"):
        journal.unlink()
    assert run_experiment(replace(E8, workers=2), lost) == run[1]


def test_the_report_leads_with_the_pre_test_and_has_verdicts_and_curves(run: tuple[Path, Experiment]) -> None:
    view = view_of(Store(run[0]))
    assert [section.key for section in view.sections] == ["pretest", "world-main", "published", "again"]
    assert from_json(to_json(view)) == view
    assert "noisescope experiment e8" in to_markdown(view) and "<svg" in to_html(view)
    blocks = view.sections[1].blocks
    assert sum(isinstance(block, Curves) for block in blocks) == 3
    (claims,) = (block for block in blocks if isinstance(block, Table) and block.title == "Claims")
    assert [row.cells[1].word for row in claims.rows] == ["undecided"] * 3  # type: ignore[union-attr]
    assert "too few to judge by" in claims.caption


def test_adaptive_scales_come_from_the_profile_and_have_the_mean_of_one_scale(tmp_path: Path) -> None:
    wanted = ExperimentWanted("adaptive", replace(RECIPE, items=20, between=20, steps=60, rows=16, examples=80))
    found = run_experiment(wanted, tmp_path / "run")
    assert [arm.name for arm in found.worlds[0].arms] == [NONE, "uniform", "adaptive"]
    for factors in found.factors:
        assert sum(factor for _, factor in factors) / 2 == pytest.approx(1.0)
    view = view_of(Store(tmp_path / "run"))
    assert "factors" in [section.key for section in view.sections]
    uniform, adaptive = found.worlds[0].arms[1:]
    means = [sum(value for _, value in arm.by_layer) / 2 for arm in (uniform, adaptive)]
    assert means[0] == pytest.approx(means[1], rel=0.05)


@pytest.mark.parametrize("rival", ["capacity", "task", "distribution", "schedule"])
def test_a_rival_explanation_is_more_worlds_of_the_same_run(
    rival: str, run: tuple[Path, Experiment], tmp_path: Path
) -> None:
    folder = copied(run, tmp_path)
    found = run_experiment(replace(E8, rivals=(rival,)), folder)
    assert found.worlds[0] == run[1].worlds[0]
    assert [len(world.claims) for world in found.worlds] == [3] * len(found.worlds)
    assert len(found.worlds) == (3 if rival == "distribution" else 2)
    trained = len(list((folder / "arms").iterdir())) - 10
    # Without noise the noise of a world makes no difference, so that arm is trained only for another model or task.
    assert trained == {"capacity": 8, "task": 8, "distribution": 12, "schedule": 6}[rival]
    to_html(view_of(Store(folder)))


def test_a_given_model_and_a_given_file(run: tuple[Path, Experiment], tmp_path: Path) -> None:
    data = tmp_path / "questions.jsonl"
    items = problems(60, 10, 10, 12).train.items
    data.write_text("".join(json.dumps({"question": one.question, "answer": one.answer}) + "\n" for one in items))
    model = next((run[0] / "arms").glob("none-0-*"))
    wanted = replace(E8, source=str(model), data=str(data), load_options=(("dtype", "float32"),))
    found = run_experiment(wanted, tmp_path / "run")
    assert found.subject == str(model) and len(found.worlds[0].arms) == 5
    with pytest.raises(BadInputError, match="go together"):
        run_experiment(replace(wanted, data=None), tmp_path / "other")


def test_the_command_trains_reports_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noisescope.cli.experiment._QUICK", {"largest": 12, "between": 6, "examples": 60})
    words = ["experiment", "e8", "--quick", "--steps", "2", "--batch-size", "4", "-n", "20", "--seeds", "2"]
    words += ["--workers", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "[undecided] Forward-only training keeps more" in first
    assert (tmp_path / "run" / "report.html").is_file() and (tmp_path / "run" / "report.md").is_file()
    assert main(words) == 0 and capsys.readouterr().out == first
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "e9"])
    assert ended.value.code == 2 and "did you mean 'e8'" in capsys.readouterr().err.lower()

"""The report of a run folder: from any mix of findings, without the model and without torch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from cases import batches, sharp
from noisescope.report.document import from_json
from noisescope.report.html import to_html
from noisescope.report.markdown import to_markdown
from noisescope.report.view import Fact, Heatmap, Reproduce, Severity, View
from noisescope.runs.kept_keys import profile_key
from noisescope.runs.reporting import report, view_of
from noisescope.sweep.journal import RunFolderError
from noisescope.sweep.store import About, Request, Store
from report import found

ABOUT = About(
    "5f1c09e2ab", "w", (("threads", 2),), "cpu", (("noisescope", "0.1"), ("torch", "2.0")), "noisescope diagnose m"
)
RECORDS: dict[str, Any] = {
    "diagnosis": found.diagnosis(),
    "robustness": found.robustness(),
    "localization": found.localization(),
}
TITLES = {"diagnosis": "Diagnosis of", "robustness": "Robustness of", "localization": "Fault localisation on"}
NAMES = {"diagnosis": "Diagnosis", "robustness": "Robustness", "localization": "Localisation"}
MARKS = {"diagnosis": "operators", "robustness": "robustness", "localization": "suspects"}
MIXES = [names for count in (1, 2, 3) for names in itertools.combinations(RECORDS, count)]


def filled(folder: Path, *names: str, request: Request | None = None) -> Store:
    store = Store(folder, ABOUT)
    for name in names:
        store.save_finding(name, RECORDS[name], request)
    return store


def again(view: View) -> Reproduce:
    (block,) = (block for block in view.sections[-1].blocks if isinstance(block, Reproduce))
    return block


@pytest.mark.parametrize("names", MIXES, ids="+".join)
def test_any_mix_of_findings_is_one_report(names: tuple[str, ...], tmp_path: Path) -> None:
    store = filled(tmp_path / "run", *names, request=Request("noisescope ask", "tiny", "questions.jsonl"))
    view = view_of(store)
    assert view.title == f"{TITLES[names[0]] if len(names) == 1 else 'Report on'} tiny"
    keys = {section.key for section in view.sections}
    assert {MARKS[name] for name in names} <= keys and not {MARKS[name] for name in set(RECORDS) - set(names)} & keys
    assert again(view).commands == ("noisescope ask",)
    assert {one.name for one in view.besides} < {NAMES[name] for name in names} and len(view.besides) == len(names) - 1
    assert Fact("torch", "2.0") in again(view).facts and Fact("threads", "2") in again(view).facts


def test_the_formats_are_made_from_one_view(tmp_path: Path) -> None:
    store = filled(tmp_path / "run", *RECORDS)
    paths = report(store.folder, ("html", "md", "json", "svg"))
    assert [path.name for path in paths[:3]] == ["report.html", "report.md", "report.json"]
    assert all(path.is_file() and store.folder in path.parents for path in paths) and len(paths) > 6
    view = from_json((store.folder / "report.json").read_text())
    assert (store.folder / "report.html").read_text() == to_html(view)
    assert (store.folder / "report.md").read_text() == to_markdown(view)


def test_a_finding_without_a_request_is_reported_from_what_the_folder_says(tmp_path: Path) -> None:
    view = view_of(filled(tmp_path / "run", "diagnosis"))
    assert view.title == "Diagnosis of model 5f1c09e2"
    assert again(view).commands == ("noisescope diagnose m",)


def test_a_remark_comes_before_the_verdict(tmp_path: Path) -> None:
    remark = "Validation: a dead_zone was planted in layer 12."
    view = view_of(filled(tmp_path / "run", "localization", request=Request(remark=remark)))
    assert view.verdict.startswith(f"{remark} The operator linear at ")
    # The fault was our own: nobody's machine is accused, and nothing is to be done about it.
    assert (view.severity, view.actions) == (Severity("validation", "none"), ())


def test_the_map_is_there_if_a_profile_of_this_scale_was_kept(tmp_path: Path) -> None:
    store = filled(tmp_path / "run", "diagnosis")
    for scale, expected in ((0.2, 0), (found.diagnosis().setting.scale, 1)):
        store.keep("profile", profile_key(ABOUT.workload, scale), found.profile().to_arrays())
        blocks = [block for section in view_of(store).sections for block in section.blocks]
        assert sum(isinstance(block, Heatmap) for block in blocks) == expected


def test_a_diagnosis_from_python_is_reported_with_its_map(tmp_path: Path) -> None:
    found_here = ns.diagnose(sharp(), batches(), mode="layer", out=tmp_path / "run")
    view = view_of(Store(tmp_path / "run"))
    assert view.title == "Diagnosis of LlamaForCausalLM"
    assert view.sections[0].key == "map"
    assert len(found_here.windows) == 4 and not again(view).commands[0].startswith("noisescope diagnose")


def test_a_folder_without_findings_says_what_to_do(tmp_path: Path) -> None:
    store = filled(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"0 readings and no finding .* repeat the command .*: noisescope diag"):
        view_of(store)
    with pytest.raises(RunFolderError, match="not a run folder"):
        report(tmp_path / "nothing")
    (tmp_path / "run" / "finding-diagnosis.json").write_text('{"schema": 1, "finding": {"setting": 3}}')
    with pytest.raises(RunFolderError, match=r"finding-diagnosis\.json: not what noisescope writes there"):
        view_of(store)


@pytest.mark.parametrize("formats", ["html,md,json,svg", pytest.param("pdf,png", marks=[pytest.mark.browser])])
def test_neither_torch_nor_a_model_is_needed(formats: str, tmp_path: Path) -> None:
    filled(tmp_path / "run", *RECORDS).keep("profile", profile_key("w", 0.05), found.profile().to_arrays())
    script = (
        "import sys\n"
        "class Away:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'tokenizers'):\n"
        "            raise ImportError(f'{name} is not installed')\n"
        "sys.meta_path.insert(0, Away())\n"
        "from noisescope.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "report", str(tmp_path / "run"), "--format", formats]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {f".{name}" for name in formats.split(",")} <= written

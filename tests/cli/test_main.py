"""The command line: help at once, examples that work, one line per mistake, the promised exit statuses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from noisescope.cli.completion import SHELLS
from noisescope.cli.main import COMMANDS, main, parsers
from noisescope.cli.options import folder_of
from noisescope.core.errors import NoisescopeError
from noisescope.sweep.store import About, Store

SCRIPT = Path(sys.executable).with_name("noisescope")


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from noisescope.cli.main import parsers; parsers()[0].format_help(); "
        "print([name for name in ('torch', 'transformers', 'numpy', 'scipy') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_the_installed_command_answers() -> None:
    done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True)
    assert all(f"    {name} " in done.stdout for name in COMMANDS)
    assert "exit status" in done.stdout


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "noisescope", "--help"], capture_output=True, text=True, check=True)
    assert (
        done.stdout.replace("__main__.py", "noisescope")
        == subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_page_ends_with_its_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    page, module = help_of(command, capsys), import_module(f"noisescope.cli.{command}")
    assert page.endswith(f"example:\n  {module.EXAMPLE}\n")
    assert module.__doc__.splitlines()[0] in " ".join(page.split())
    asked = parsers()[0].parse_args(shlex.split(module.EXAMPLE)[1:])
    assert asked.run is module.run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_means(command: str) -> None:
    for action in parsers()[1][command]._actions:
        said = re.sub(r"\(default: .*\)", "", action.help or "").strip()
        assert said, f"{command} {action.option_strings}"


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("robustness demo -n 200", "runs/robustness-demo"),
        ("diagnose '/models/My Llama'", "runs/diagnose-My-Llama"),
        ("diagnose org/name.gguf --out there", "there"),
    ],
)
def test_a_run_folder_that_is_not_named_is_that_of_command_and_model(line: str, folder: str) -> None:
    assert folder_of(parsers()[0].parse_args(shlex.split(line))) == Path(folder)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("sites no-such-model-here", "no-such-model-here"),
        ("sites demo --device tpu", "device 'tpu'"),
        ("status no/such/folder", "no/such/folder: not a run folder"),
        ("diagnos demo", "unknown command 'diagnos'; accepted: bits"),
        ("diagnos demo", "Did you mean 'diagnose'?"),
        ("diagnose demo --noise-scal=0.1", "unknown option of diagnose '--noise-scal'"),
        ("diagnose demo --noise-scal 0.1", "Did you mean '--noise-scale'?"),
        ("sites demo more", "unknown option of sites 'more'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(line: str, seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("noisescope: ") and said.err.count("\n") == 1 and seen in said.err


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("diagnose", "required: MODEL"),
        ("diagnose demo --noise-scale strong", "--noise-scale: 'strong': expected a finite number above 0"),
        ("locate demo --fault-type dead", "Did you mean 'dead_zone'?"),
        ("report", "required: RUN"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_help(
    line: str, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line))
    said = capsys.readouterr()
    assert (end.value.code, said.out, said.err.count("\n")) == (2, "", 1) and seen in said.err
    assert said.err.endswith(f"What it takes: noisescope {line.split(maxsplit=1)[0]} --help\n")


def test_without_a_command_there_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith("example:\n  noisescope demo\n")


def test_what_nobody_foresaw_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("noisescope.cli.status.run", lambda _asked: 1 // 0)
    assert main(["status", "x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "ZeroDivisionError" in said and "NOISESCOPE_TRACEBACK=1" in said
    monkeypatch.setenv("NOISESCOPE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["status", "x"])


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt("kept in runs/x"), 3), (NoisescopeError("bad"), 2)])
def test_how_a_command_ends_is_its_status(
    stop: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_asked: object) -> int:
        raise stop

    monkeypatch.setattr("noisescope.cli.status.run", run)
    assert main(["status", "x"]) == status
    assert capsys.readouterr().err == f"noisescope: {stop}\n"


def test_status_says_what_a_folder_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from contracts.benches import expected, trials
    from noisescope.core.records import Reading

    with Store(tmp_path / "run", About("model", "workload", device="cpu", asked="diagnose tiny")) as store:
        for trial in trials(3):
            store.append(expected(trial))
        store.append(Reading(trials(4)[3], error="MemoryError: out of memory"))
    assert main(["status", str(tmp_path / "run")]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["asked"] == "diagnose tiny" and rows["readings"] == "3" and rows["failed"] == "1"
    assert rows["first"] == "MemoryError: out of memory"
    assert rows["findings"].startswith("none yet")


@pytest.mark.real_model
def test_sites_lists_every_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sites", "demo"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[-1].split() == ["-", "linear", "lm_head"]
    counts = "30 layers, 392 sites: 61 rms_norm, 211 linear, 30 matmul, 30 softmax, 30 attention, 30 silu\n"
    assert said.err.endswith(counts)  # where the model is fetched first, that is told before
    assert len(lines) == 392


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in (*COMMANDS, "--noise-scale"))
    if shell == "bash":
        typed = "COMP_WORDS=(noisescope diagnose --win) COMP_CWORD=2; _shtab_noisescope"
        asked = f'{script}\n{typed}; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["--window-size"]


@pytest.mark.slow
@pytest.mark.real_model
def test_every_example_works_when_pasted(tmp_path: Path) -> None:
    for command in COMMANDS:
        example = import_module(f"noisescope.cli.{command}").EXAMPLE
        words = [SCRIPT, *shlex.split(example)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == (1 if "--ground-truth-layer" in example else 0), (example, done.stderr)
        assert done.stdout

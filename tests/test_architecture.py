"""The rules of the house, held by tests: sizes, names, floors, and what may be loaded by whom."""

import ast
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "noisescope"
# In the dialect of Triton, where a kernel takes every operand by itself.
KERNELS = {HOUSE / "inject" / "gpu_kernel.py"}
FILES = sorted(set(HOUSE.rglob("*.py")) - KERNELS)
FUNCTION_LINES, FUNCTION_MEDIAN, FILE_LINES, ARGUMENTS, NESTING = 40, 10, 400, 6, 3
# A room whose own name is public has to offer its names in its package.
PUBLIC_ROOMS = {"verl"}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(HOUSE)}:{node.lineno} {node.name}", node


def lines_of(function: Function) -> int:
    """From the first statement after the docstring to the end, and the line of the def."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return function.end_lineno - body[0].lineno + 2 if body else 1


def arguments_of(function: Function) -> int:
    listed = function.args.posonlyargs + function.args.args
    bound = bool(listed) and listed[0].arg in ("self", "cls")
    return len(listed) + len(function.args.kwonlyargs) - bound


def nesting_of(node: ast.AST, depth: int = 0) -> int:
    """The deepest block in a block; an elif is as deep as its if."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting_of(child, depth + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


@pytest.mark.parametrize(
    ("measure", "limit"),
    [(lines_of, FUNCTION_LINES), (arguments_of, ARGUMENTS), (nesting_of, NESTING)],
    ids=["lines", "arguments", "nesting"],
)
def test_no_function_is_over_a_limit(measure, limit):
    over = {name: size for name, node in functions() if (size := measure(node)) > limit}
    assert not over, f"limit {limit}"


def test_most_functions_are_short():
    assert statistics.median(lines_of(node) for _, node in functions()) <= FUNCTION_MEDIAN


def test_no_file_is_over_the_limit():
    sizes = {str(path.relative_to(HOUSE)): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: size for name, size in sizes.items() if size > FILE_LINES}, f"limit {FILE_LINES}"


def test_every_name_says_something():
    assert not [str(path) for path in FILES if EMPTY_NAMES & set(path.relative_to(HOUSE).with_suffix("").parts)]


def test_commands_speak_through_lines_alone():
    """What is written past it can steer a terminal with a name out of a file."""
    spoken = [
        path for path in (HOUSE / "cli").glob("*.py") if re.search(r"std(out|err)\.write|\bprint\(", path.read_text())
    ]
    assert [path.name for path in spoken] == ["lines.py"]


def test_every_module_says_what_it_does_and_room_packages_hold_nothing():
    rooms = [path for path in FILES if path.name == "__init__.py" and path.parent != HOUSE]
    silent = [path for path in FILES if path not in rooms and not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent
    kept = {path: ast.parse(path.read_text()).body for path in rooms}
    full = [path for path, body in kept.items() if [node for node in body if not isinstance(node, ast.Expr)]]
    assert not [path for path in full if path.parent.name not in PUBLIC_ROOMS]


def run(*command: str) -> str:
    path = os.pathsep.join([str(HOUSE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rooms_import_downwards_only():
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or "lint-imports"
    assert "0 broken" in run(command, "--no-cache")


def test_the_contracts_see_a_violation(tmp_path):
    """A linter that finds nothing in a broken house would hold nothing."""
    shutil.copy(ROOT / ".importlinter", tmp_path)
    shutil.copytree(HOUSE, tmp_path / "noisescope", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "noisescope" / "core" / "stray.py").write_text("import torch\nimport noisescope.model.load\n")
    (tmp_path / "noisescope" / "attic").mkdir()
    (tmp_path / "noisescope" / "attic" / "__init__.py").touch()
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or "lint-imports"
    done = subprocess.run(
        [command, "--no-cache"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    for expected in ("noisescope.core.stray", "torch", "attic"):
        assert expected in done.stdout


def loaded_by(*rooms: str) -> set[str]:
    """Every module that is in memory once all modules of these rooms are imported."""
    script = (
        "import importlib, pkgutil, sys\n"
        "for room in sys.argv[1:]:\n"
        "    package = importlib.import_module(room)\n"
        "    if room != 'noisescope':\n"
        "        for module in pkgutil.walk_packages(package.__path__, room + '.'):\n"
        "            if not module.name.endswith('gpu_kernel'):\n"
        "                importlib.import_module(module.name)\n"
        "print(*sys.modules)\n"
    )
    return set(run(sys.executable, "-c", script, *rooms).split())


def test_records_diagnoses_and_reports_load_without_torch():
    rooms = ("noisescope", "noisescope.core", "noisescope.diagnose", "noisescope.report")
    seen = loaded_by(*rooms)
    assert set(rooms) <= seen
    assert not {"torch", "transformers"} & seen


def test_models_are_known_without_loading_transformers():
    seen = loaded_by("noisescope.model", "noisescope.inject")
    assert "noisescope.model.load" in seen
    assert "transformers" not in seen

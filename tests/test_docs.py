"""What the documents say holds: their code runs with the output they show, and what they name is there."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
import torch

import noisescope as ns
from noisescope.cli.main import parsers, read_words
from noisescope.core import errors
from noisescope.core.environment import VARIABLES
from noisescope.core.vocabulary import OPERATOR_ALIASES, OPERATORS
from noisescope.verl.environment import plan_from, settings_from
from noisescope.verl.noisy_ops import BOARD
from noisescope.verl.settings import Settings

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "noisescope"
ENVIRONMENT = "docs/environment.md"
VERL = "variable of verl | example | when left out"
DOCS = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(
    r"(?P<mark><!-- no-test(?:: (?P<reason>[^>]+))? -->\n)?```python\n(?P<code>.*?)```"
    r"(?:\n\n```text\n(?P<shown>.*?)```)?",
    re.DOTALL,
)
DECIMAL = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(name: str) -> list[re.Match[str]]:
    return list(BLOCK.finditer(text_of(name)))


def cells_of(name: str, first: str) -> list[list[str]]:
    """The rows of the table whose head begins with `first`, without head and rule."""
    lines = text_of(name).split(f"| {first} |", 1)[1].splitlines()
    end = next((i for i, line in enumerate(lines[2:], 2) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:end]]


def prose_of(name: str) -> str:
    return re.sub(r"```.*?```", "", text_of(name), flags=re.DOTALL)


def quoted_in(name: str) -> list[str]:
    """Everything in single backticks outside the code blocks."""
    return re.findall(r"`([^`\n]+)`", prose_of(name))


@pytest.fixture
def as_found() -> Iterator[None]:
    """The switchboard and the global random state are as before, whatever a document did to them."""
    settings = BOARD.settings
    with torch.random.fork_rng(devices=[]):
        yield
    BOARD.disable()
    BOARD.adopt(settings)
    BOARD.stats.reset()


def files_with_code() -> list[object]:
    named = [name for name in DOCS if blocks_of(name)]
    return [
        pytest.param(name, marks=[pytest.mark.real_model] if 'load("demo")' in text_of(name) else []) for name in named
    ]


@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("name", files_with_code())
def test_the_code_runs_and_prints_what_is_shown(name: str) -> None:
    namespace: dict[str, object] = {}
    for block in blocks_of(name):
        if block["mark"]:
            continue
        line = text_of(name)[: block.start("code")].count("\n")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + block["code"], name, "exec"), namespace)
        assert_alike(printed.getvalue(), block["shown"] or "")


def assert_alike(printed: str, shown: str) -> None:
    """Equal words and whole numbers, and other numbers within 5 %: machines round differently."""
    assert DECIMAL.sub("#", printed) == DECIMAL.sub("#", shown)
    found, expected = ([float(x) for x in DECIMAL.findall(text)] for text in (printed, shown))
    assert found == pytest.approx(expected, rel=0.05)


def test_outputs_that_differ_are_told_apart() -> None:
    assert_alike("loss 1.01 of 3\n", "loss 1.00 of 3\n")
    for printed in ("loss 1.10 of 3\n", "loss 1.01 of 4\n", "harm 1.01 of 3\n"):
        with pytest.raises(AssertionError):
            assert_alike(printed, "loss 1.00 of 3\n")


@pytest.mark.parametrize("name", DOCS)
def test_what_is_not_run_has_a_reason(name: str) -> None:
    assert all(block["reason"] for block in blocks_of(name) if block["mark"])
    assert text_of(name).count("<!-- no-test") == sum(bool(block["mark"]) for block in blocks_of(name))


def anchors_of(path: Path) -> set[str]:
    """The anchors that the headings of a document get."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(name)):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("name", DOCS)
def test_files_and_commands_that_are_named_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    commands = re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z-]+)`", prose_of(name))
    commands += re.findall(r"^make ([a-z-]+)", text_of(name), re.MULTILINE)
    assert set(commands) <= targets
    files = [quoted for quoted in quoted_in(name) if re.fullmatch(r"[\w./-]+\.(py|md|toml|txt|c)", quoted)]
    assert not [file for file in files if not (ROOT / file).exists() and not (HOUSE / file).exists()]


def resolve(dotted: str) -> object:
    """The object behind a dotted name whose first part is a module or one of the usual short names."""
    short = {"F": torch.nn.functional, "Tensor": torch.Tensor, "nn": torch.nn, "torch": torch, "ns": ns}
    first, *rest = dotted.split(".")
    if first != "noisescope":
        return reduce(getattr, rest, short[first])
    for end in range(len(rest), -1, -1):
        with contextlib.suppress(ModuleNotFoundError):
            return reduce(getattr, rest[end:], importlib.import_module(".".join(["noisescope", *rest[:end]])))
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("name", DOCS)
def test_code_that_is_named_exists(name: str) -> None:
    for quoted in quoted_in(name):
        if found := re.match(r"((?:noisescope|torch|ns|nn|F|Tensor)(?:\.\w+)+)", quoted):
            assert resolve(found[1]) is not None
        if re.fullmatch(r"\w+Error", quoted):
            assert hasattr(errors, quoted), quoted
    source = "\n".join(path.read_text() for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
    constants = {quoted for quoted in quoted_in(name) if re.fullmatch(r"_?[A-Z]+(_[A-Z]+)+|[A-Z]{5,}", quoted)}
    unknown = {word for word in constants if not re.search(rf"^{word}\b", source, re.MULTILINE)}
    assert not unknown - variables_shown() - values_of_options()


def values_of_options() -> set[str]:
    """What the page of the command line writes in place of a value."""
    return set(re.findall(r"^\| `--[a-z-]+`[^|]*\| `([A-Z]+)` \|", text_of("docs/command-line.md"), re.MULTILINE))


def variables_shown() -> set[str]:
    """Every environment variable in the tables, also as the text writes it where the prefix is plain."""
    heads = ("variable | also read as | example", VERL, "variable | when left out")
    rows = [row for head in heads for row in cells_of(ENVIRONMENT, head)]
    names = {name for row in rows for cell in row for name in re.findall(r"`([A-Z_]{2,})`", cell)}
    return names | {name.removeprefix("NOISESCOPE_") for name in names}


def test_the_tables_of_variables_hold_what_the_source_reads() -> None:
    asked = {
        variable
        for path in HOUSE.rglob("*.py")
        for variable in re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"', path.read_text())
    }
    assert asked == {*VARIABLES, "XDG_CACHE_HOME"}
    assert "`XDG_CACHE_HOME`" in text_of(ENVIRONMENT)


@pytest.mark.parametrize("row", cells_of(ENVIRONMENT, "variable | also read as | example"), ids=lambda row: row[0])
def test_every_switch_does_something_under_each_of_its_names(row: list[str]) -> None:
    default = settings_from({"NOISESCOPE_ENABLED": "1"})
    assert default == Settings()
    example = row[2].strip("`")
    for name in (cell.strip("`") for cell in row[:2] if cell):
        asked = {"NOISESCOPE_ENABLED": "1", "NOISESCOPE_LAYER_SCALES": "0=0.5"} | {name: example}
        plain = settings_from({key: value for key, value in asked.items() if key != name})
        assert settings_from(asked) != (None if name.endswith("_ENABLED") else plain), name


@pytest.mark.parametrize("row", cells_of(ENVIRONMENT, VERL), ids=lambda row: row[0])
def test_every_variable_of_verl_changes_the_noise(row: list[str], tmp_path: Path) -> None:
    name, example = (cell.strip("`") for cell in row[:2])
    on = {"NOISESCOPE_ENABLED": "1"}
    if name == "NOISESCOPE_CONFIG":
        example = str(tmp_path / example)
        Path(example).write_text("noise:\n  schedule: decay\n")
    assert plan_from({**on, name: example}) != plan_from(on)


def test_the_table_of_operators_is_complete() -> None:
    shown = [name for row in cells_of("docs/engine.md", "operator") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(shown) == sorted(OPERATORS)
    assert all(f"`{alias}`" in text_of("docs/engine.md") for alias in OPERATOR_ALIASES)


def test_the_changelog_knows_this_version() -> None:
    assert f"[Unreleased]: {ns.__version__}" in text_of("CHANGELOG.md")


def test_the_pages_of_reference_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_reference.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run tools/make_reference.py"


def test_the_file_of_settings_says_what_holds_anyway(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(re.search(r"```yaml\n(.*?)```", text_of("docs/command-line.md"), re.DOTALL)[1])
    named = vars(read_words(["diagnose", "--config", str(file)]))
    plain = vars(read_words(["diagnose", "demo", "--out", "runs/first"]))
    assert {key: value for key, value in named.items() if value != plain[key]}.keys() == {"config", "command_line"}


def lines_of_shell(name: str) -> list[str]:
    """The calls of noisescope in the shell blocks of a document, lines that go on put together."""
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text_of(name), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.strip().removeprefix("$ ") for line in lines if re.match(r"(\$ )?noisescope ", line.strip())]


def is_understood(words: list[str]) -> bool:
    """An option that only prints, such as --template, ends the reading with status 0."""
    try:
        return parsers()[0].parse_args(words).run is not None
    except SystemExit as end:
        return end.code == 0


@pytest.mark.parametrize("name", DOCS)
def test_commands_that_are_shown_are_understood(name: str) -> None:
    for line in lines_of_shell(name):
        if "COMMAND" not in line:
            assert is_understood(shlex.split(line, comments=True)[1:]), line


def test_pictures_are_shown_and_small() -> None:
    shown = {link for name in DOCS for link in re.findall(r"!\[[^\]]+\]\((?:docs/)?(images/[^)]+)\)", text_of(name))}
    kept = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.png")}
    assert shown == kept
    assert all((ROOT / "docs" / name).stat().st_size < 300_000 for name in kept)

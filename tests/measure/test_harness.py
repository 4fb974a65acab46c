"""Tasks of lm-evaluation-harness as workloads: read by the harness itself where it is installed."""

from __future__ import annotations

import json
import sys
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from noisescope.core.errors import BadInputError
from noisescope.measure.harness import EXTRA, items_of, read_task
from noisescope.measure.workload import Choice, Completion, Question, Text

LINES = {
    "choices": [
        {"q": "The sky is", "options": ["blue", "made of bread", "loud"], "label": 0},
        {"q": "Grass is", "options": ["purple", "green", "square"], "label": 1},
        {"q": "Ice is", "options": ["hot", "wood", "cold"], "label": 2},
    ],
    "sums": [
        {"question": "What is 2 + 2?", "answer": "2 + 2 = 4\n#### 4"},
        {"question": "What is 3 + 5?", "answer": "3 + 5 = 8\n#### 8"},
    ],
}
ABOUT = {
    "local_choice": ("choices", "multiple_choice", "{{q}}", "label", {"doc_to_choice": "{{options}}"}),
    "local_sums": ("sums", "generate_until", "Q: {{question}}\nA:", "{{answer}}", {}),
    "local_likely": ("sums", "loglikelihood", "{{question}}", " {{answer}}", {}),
    "local_rolling": ("sums", "loglikelihood_rolling", "", "{{question}}", {}),
}
METRIC = {
    "multiple_choice": ["acc", "acc_norm", "acc_mutual_info"],
    "generate_until": ["exact_match"],
    "loglikelihood": ["perplexity"],
    "loglikelihood_rolling": ["word_perplexity"],
}


def write_tasks(folder: Path) -> str:
    """The tasks as files of the harness; JSON is YAML as well."""
    for name, lines in LINES.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, (data, kind, shown, target, more) in ABOUT.items():
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{data}.jsonl")}},
            "test_split": "test",
            "fewshot_split": "test",
            "output_type": kind,
            "doc_to_text": shown,
            "doc_to_target": target,
            "metric_list": [{"metric": metric} for metric in METRIC[kind]],
            **({"generation_kwargs": {"until": ["\n\n", "Q:"]}} if kind == "generate_until" else {}),
            **more,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))
    group = {"group": "local_group", "task": ["local_choice", "local_sums"]}
    (folder / "local_group.yaml").write_text(json.dumps(group))
    return str(folder)


EXPECTED = {
    "local_choice": (
        Choice("The sky is", (" blue", " made of bread", " loud"), 0),
        Choice("Grass is", (" purple", " green", " square"), 1),
        Choice("Ice is", (" hot", " wood", " cold"), 2),
    ),
    "local_sums": (
        Question("Q: What is 2 + 2?\nA:", "2 + 2 = 4\n#### 4", ends=("\n\n", "Q:")),
        Question("Q: What is 3 + 5?\nA:", "3 + 5 = 8\n#### 8", ends=("\n\n", "Q:")),
    ),
    "local_likely": (
        Completion("What is 2 + 2?", " 2 + 2 = 4\n#### 4"),
        Completion("What is 3 + 5?", " 3 + 5 = 8\n#### 8"),
    ),
    "local_rolling": (Text("What is 2 + 2?"), Text("What is 3 + 5?")),
}


class TestInstalled:
    """What the harness itself gives: `pip install 'noisescope[harness]'`."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory) -> str:
        pytest.importorskip("lm_eval", reason=f"lm-evaluation-harness is not installed: {EXTRA}")
        return write_tasks(tmp_path_factory.mktemp("tasks"))

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("name", EXPECTED)
    def test_a_local_task_is_read(self, folder, name, capsys):
        workload = read_task(name, folder=folder)
        assert workload.items == EXPECTED[name]
        assert workload.name == name
        assert read_task(name, folder=folder, limit=1).items == EXPECTED[name][:1]
        assert capsys.readouterr().out == ""

    @pytest.mark.filterwarnings("ignore")
    def test_examples_come_before_the_prompt(self, folder):
        (first, *_) = read_task("local_sums", folder=folder, shots=1).items
        example, _, asked = first.question.rpartition("\n\n")
        assert asked == "Q: What is 2 + 2?\nA:"
        assert example == "Q: What is 3 + 5?\nA: 3 + 5 = 8\n#### 8"

    @pytest.mark.filterwarnings("ignore")
    def test_an_unknown_task_and_a_group_are_refused(self, folder):
        with pytest.raises(BadInputError, match="task 'local_nothing': lm-evaluation-harness cannot load it"):
            read_task("local_nothing", folder=folder)
        with pytest.raises(
            BadInputError, match="'local_group' is a group of 2: local_choice, local_sums; expected one"
        ):
            read_task("local_group", folder=folder)


@dataclass
class Instance:
    """A request with the fields of the harness's own class of that name."""

    request_type: str
    doc: dict
    arguments: tuple
    idx: int
    doc_id: int

    @property
    def args(self):
        return self.arguments if isinstance(self.arguments, tuple) else (self.arguments,)


class Task(UserDict):
    """A task that has built its requests, with the names of the harness's own class."""

    def __init__(self, kind: str, requests: list[Instance]) -> None:
        super().__init__()
        self.OUTPUT_TYPE, self.instances = kind, requests

    def doc_to_target(self, doc):
        return doc["target"]

    def doc_to_choice(self, doc):
        return doc["choices"]


def task(kind, *documents):
    """A task of documents, each with the arguments of its requests."""
    requests = [
        Instance(kind, doc, args, idx, doc_id)
        for doc_id, (doc, several) in enumerate(documents)
        for idx, args in enumerate(several)
    ]
    return Task(kind, requests)


def chosen(target, prompts=("p", "p"), choices=(" a", " b"), named=("a", "b")):
    return {"target": target, "choices": list(named)}, list(zip(prompts, choices, strict=True))


def test_each_kind_of_request_becomes_an_item():
    assert items_of("t", task("multiple_choice", chosen(1), chosen("a", ("q", "q")))) == [
        Choice("p", (" a", " b"), 1),
        Choice("q", (" a", " b"), 0),
    ]
    assert items_of("t", task("loglikelihood", ({}, [("p", " rest")]))) == [Completion("p", " rest")]
    assert items_of("t", task("loglikelihood_rolling", ({}, [("all",)]), ({}, ["one"]))) == [Text("all"), Text("one")]
    asked = ({"target": "#### 4"}, [("p", {"until": ["\n", ""]})]), ({"target": 5}, [("q", {"until": "Q:"})])
    assert items_of("t", task("generate_until", *asked, ({"target": "6"}, [("r", {})]))) == [
        Question("p", "#### 4", ends=("\n",)),
        Question("q", "5", ends=("Q:",)),
        Question("r", "6", ends=()),
    ]


def test_requests_for_mutual_information_are_passed_over():
    asked = chosen(1, ("p", "p", "", ""), (" a", " b", " a", " b"))
    assert items_of("t", task("multiple_choice", asked)) == [Choice("p", (" a", " b"), 1)]


def test_an_item_that_comes_twice_counts_once():
    assert len(items_of("t", task("multiple_choice", chosen(1), chosen(0), chosen(1)))) == 2


@pytest.mark.parametrize(
    "odd",
    [
        chosen("c"),
        chosen([0, 1]),
        chosen(2),
        chosen(-1),
        chosen(True),
        chosen(0, ("p", "q")),
        chosen(0, choices=(" a", " a")),
        chosen(0, ("", "")),
    ],
    ids=["unknown", "several", "beyond", "below", "yes", "two prompts", "equal choices", "no prompt"],
)
def test_a_choice_that_cannot_be_judged_is_refused(odd):
    with pytest.raises(BadInputError, match=r"task 't': an item with .* expected one prompt, choices"):
        items_of("t", task("multiple_choice", odd))


def test_an_answer_without_a_number_is_refused():
    with pytest.raises(BadInputError, match="task 't': the answer 'yes' holds no number"):
        items_of("t", task("generate_until", ({"target": "yes"}, [("p", {"until": []})])))


class TestStandIn:
    """The way to the harness and back, with a stand-in that has its names: it is not installed everywhere."""

    @pytest.fixture
    def known(self, monkeypatch) -> dict[str, Task]:
        """The tasks that the stand-in knows, by name."""
        known: dict[str, Task] = {}

        class TaskManager:
            def __init__(self, include_path=None) -> None:
                self.include_path = include_path

            def load(self, name):
                print("loading")
                if name not in known and name != "group":
                    raise KeyError(f"{name} in {self.include_path}")
                return {"tasks": dict(known) if name == "group" else {name: known[name]}}

        tasks = ModuleType("lm_eval.tasks")
        tasks.TaskManager = TaskManager
        monkeypatch.setitem(sys.modules, "lm_eval", ModuleType("lm_eval"))
        monkeypatch.setitem(sys.modules, "lm_eval.tasks", tasks)
        return known

    def test_a_task_is_asked_for_its_requests_and_what_it_prints_is_no_result(self, known, capsys):
        asked = {}
        known["mine"] = task("multiple_choice", chosen(0), chosen(1))
        known["mine"].set_config = lambda key, value: asked.update({key: value})
        known["mine"].build_all_requests = lambda **how: print("building") or asked.update(how)
        workload = read_task("mine", limit=7, shots=3)
        assert workload.items == (Choice("p", (" a", " b"), 0), Choice("p", (" a", " b"), 1))
        assert asked == {"num_fewshot": 3, "limit": 7, "rank": 0, "world_size": 1}
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.split() == ["loading", "building"]

    def test_a_group_and_what_cannot_be_loaded_are_refused(self, known):
        known.update(one=task("multiple_choice"), two=task("multiple_choice"))
        with pytest.raises(BadInputError, match="'group' is a group of 2: one, two; expected one of them"):
            read_task("group")
        with pytest.raises(BadInputError, match=r"task 'three': .* cannot load it \('three in here'\)"):
            read_task("three", folder="here")


def test_without_the_harness_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(BadInputError, match=r"not installed; pip install 'noisescope\[harness\]'"):
        read_task("gsm8k")

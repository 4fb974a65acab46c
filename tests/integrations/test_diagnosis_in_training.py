"""A diagnosis every N steps inside the real Trainer: what it leaves behind, and that the training never knows."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import cases
from letters import letters
from noisescope.core.errors import BadInputError
from noisescope.integrations.transformers import DiagnosisCallback, NoiseCallback
from noisescope.prescribe.history import read_history
from noisescope.runs.checkups import Checkups
from noisescope.runs.diagnosing import Wanted

STEPS = 4
# transformers gave it another name in 5.20.
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in inspect.signature(TrainingArguments).parameters
)
TEXTS = ["a cat sat on a mat", "noise tells where it hurts", "three times four is twelve", "so it goes"]


class Rows(Dataset[dict[str, Tensor]]):
    ids = torch.randint(3, 128, (16, 6), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def model_of(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """One whose training draws random numbers: a diagnosis that moves the stream would change every later loss."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**cases.SMALL, attention_dropout=0.2)
    return transformers.LlamaForCausalLM(config).to(dtype)


def trainer_of(folder: Path, **more: Any) -> Trainer:
    settings = {
        "output_dir": str(folder / "training"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(**{**settings, **more})
    return Trainer(model_of(), args, train_dataset=Rows(), eval_dataset=Rows(), processing_class=letters())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return file


def asked(data: Path, every: int = 2, **more: Any) -> Checkups:
    here = data.parent
    wanted = more.pop("wanted", Wanted(mode="operator", seeds=1))
    return Checkups(every, wanted, str(data), 4, history=here / "history.jsonl", out=here / "checkups", **more)


def steps_of(trainer: Trainer) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if "loss" in row]


def course_of(trainer: Trainer) -> list[tuple[Any, ...]]:
    names = ("loss", "grad_norm", "noise_scale", "noise_injections", "noise_realised_forward", "noise_gradient_ratio")
    return [tuple(row.get(name) for name in names) for row in steps_of(trainer)]


def weights(trainer: Trainer) -> list[Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


HOW = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "checkpointed": {CHECKPOINTING: True},
    "autocast": {"bf16": True},
}


@pytest.mark.parametrize("how", HOW)
def test_the_training_is_the_same_to_the_bit(tmp_path, data, how):
    ends = []
    for is_diagnosed in (False, True):
        trainer = trainer_of(tmp_path, **HOW[how])
        NoiseCallback("decay", norms=0.02, gradient_every=1).attach(trainer)
        if is_diagnosed:
            DiagnosisCallback(asked(data, wanted=Wanted(seeds=1))).attach(trainer)
        trainer.train()
        ends.append((course_of(trainer), weights(trainer)))
    (course, clean), (again, diagnosed) = ends
    assert course == again and len(course) == STEPS
    assert all(torch.equal(a, b) for a, b in zip(clean, diagnosed, strict=True))


def test_every_diagnosis_is_a_line_of_the_history_and_a_run_folder(tmp_path, data):
    trainer = trainer_of(tmp_path)
    DiagnosisCallback(asked(data, label="run 7")).attach(trainer)
    trainer.train()
    visits = read_history(tmp_path / "history.jsonl").visits
    assert [visit.checkpoint for visit in visits] == ["run 7 step 2", "run 7 step 4"]
    assert len({visit.terms for visit in visits}) == 1 and len({visit.fingerprint for visit in visits}) == 2
    folders = sorted((tmp_path / "checkups").iterdir())
    assert [folder.name[:11] for folder in folders] == ["step-000002", "step-000004"]
    assert all((folder / "report.html").is_file() for folder in folders)


def test_the_figures_are_those_of_the_same_diagnosis_outside(tmp_path, data):
    """What is measured is the model of that step without any noise of the training."""
    trainer = trainer_of(tmp_path)
    NoiseCallback(0.2, norms=0.1).attach(trainer)
    DiagnosisCallback(asked(data, STEPS)).attach(trainer)
    trainer.train()
    (inside,) = read_history(tmp_path / "history.jsonl").visits
    logged = {name: value for name, value in steps_of(trainer)[-1].items() if name.startswith("diagnosis_")}
    assert logged == {
        **{f"diagnosis_{name}": harm.estimate for name, harm in inside.operators},
        "diagnosis_clean": inside.clean.estimate,
    }
    other = trainer_of(tmp_path, learning_rate=0.0, max_steps=1)
    other.model.load_state_dict(trainer.model.state_dict())
    history = tmp_path / "outside.jsonl"
    again = Checkups(1, Wanted(mode="operator", seeds=1), str(data), 4, history=history, out=tmp_path / "outside")
    DiagnosisCallback(again).attach(other)
    other.train()
    (outside,) = read_history(history).visits
    assert (outside.fingerprint, outside.operators) == (inside.fingerprint, inside.operators)


def test_the_block_of_a_file_asks_for_it(tmp_path, data):
    file = tmp_path / "training.yaml"
    file.write_text(
        f"noise:\n  schedule: decay\ndiagnostic:\n  enabled: true\n  mode: operator\n  every: 4\n  data: {data}\n"
        f"  samples: 4\n  seeds: 1\n  history: {tmp_path}/history.jsonl\n  out: {tmp_path}/checkups\n"
    )
    trainer = trainer_of(tmp_path)
    DiagnosisCallback.of_file(file).attach(trainer)
    NoiseCallback.of_file(file, gradient_every=0).attach(trainer)
    trainer.train()
    assert len(read_history(tmp_path / "history.jsonl").visits) == 1 and steps_of(trainer)[0]["noise_scale"] == 0.05
    file.write_text(file.read_text().replace("enabled: true", "enabled: false"))
    idle = trainer_of(tmp_path)
    DiagnosisCallback.of_file(file).attach(idle)
    idle.train()
    assert len(read_history(tmp_path / "history.jsonl").visits) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"metric": "kl_to_clean"}, "no clean score to lose a share of"),
        ({"baseline": Path("nowhere.json")}, "expected a baseline"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_first_step(tmp_path, data, changes, said):
    trainer = trainer_of(tmp_path)
    wanted = {"data": str(data), "history": tmp_path / "history.jsonl", "out": tmp_path / "checkups", **changes}
    DiagnosisCallback(Checkups(2, **wanted)).attach(trainer)
    with pytest.raises(BadInputError, match=said):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_diagnosis_that_fails_is_told_and_ends_nothing(tmp_path, data, capsys):
    trainer = trainer_of(tmp_path)
    (tmp_path / "checkups").write_text("a file where the run folders should be")
    DiagnosisCallback(asked(data)).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == STEPS
    told = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in told] == [" no diagnosis at step 2", " no diagnosis at step 4"]


def test_it_has_to_stand_behind_the_noise(tmp_path, data):
    trainer = trainer_of(tmp_path)
    trainer.add_callback(DiagnosisCallback(asked(data)))
    with pytest.raises(BadInputError, match=r"\.attach\(trainer\)"):
        trainer.train()
    trainer = trainer_of(tmp_path)
    DiagnosisCallback(asked(data)).attach(trainer)
    trainer.add_callback(NoiseCallback(0.1))
    with pytest.raises(BadInputError, match="noise would be on meanwhile"):
        trainer.train()

"""One run of verl's SFT trainer on a CPU, and what was seen in it: `torchrun train.py FOLDER [OVERRIDE...]`.

FOLDER holds a model; rank 0 writes seen.json there: every training and inference batch with its loss and the noise
that was counted until then.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hydra import compose, initialize_config_module
from torch.utils.data import Dataset
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import sft_loss

ROWS, LENGTH = 32, 6


class Rows(Dataset):
    """Rows of random tokens, the same in every run."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.ids = torch.randint(3, 128, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        # The first token is foretold by nothing; verl would have the row before foretell it.
        learned = torch.arange(LENGTH).clamp(max=1)
        return {"input_ids": self.ids[index], "position_ids": torch.arange(LENGTH), "loss_mask": learned}


def overrides(folder: Path) -> list[str]:
    return [
        "engine.strategy=fsdp2",
        "engine.use_torch_compile=False",
        "+engine.mixed_precision={param_dtype:fp32,reduce_dtype:fp32}",
        "model.use_remove_padding=False",
        f"model.path={folder}",
        "+model.override_config.attn_implementation=eager",
        "data.train_files=none",
        "data.val_files=none",
        f"data.custom_cls.path={__file__}",
        "data.custom_cls.name=Rows",
        "data.train_batch_size=8",
        "data.micro_batch_size_per_gpu=2",
        "data.use_dynamic_bsz=False",
        "data.num_workers=0",
        "optim.lr=1e-2",
        "trainer.device=cpu",
        "trainer.logger=[console]",
        "trainer.total_epochs=1",
        "trainer.test_freq=2",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        "trainer.resume_mode=disable",
    ]


def counts_of(trainer: SFTTrainer) -> list[int]:
    noise = getattr(trainer.engine, "noise", None)
    return [] if noise is None else [noise.stats.total_forward, noise.stats.total_backward]


def watch(trainer: SFTTrainer, seen: list[dict[str, Any]]) -> None:
    """Note every batch of the trainer with its figures."""
    client = trainer.training_client

    def noted(what: str, method: Any) -> Any:
        def run(data: Any) -> Any:
            output = method(data)
            metrics = {name: value for name, value in tu.get(output, "metrics").items() if not name.startswith("perf")}
            seen.append({"what": what, "counts": counts_of(trainer), **metrics})
            return output

        return run

    client.train_batch, client.infer_batch = (
        noted("train", client.train_batch),
        noted("infer", client.infer_batch),
    )


def update_actor(trainer: SFTTrainer, seen: list[dict[str, Any]]) -> None:
    """What PPO asks of its actor: old log-probabilities, then one update in two mini-batches, with figures."""
    client = trainer.training_client
    meta = {
        "pad_mode": "no_padding",
        "pad_token_id": 0,
        "temperature": 1.0,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 2,
    }
    rows = tu.get_tensordict(tensor_dict=next(iter(trainer.train_dataloader)), non_tensor_dict=meta)
    client.infer_batch(rows.copy())
    client.set_loss_fn(lambda **given: (sft_loss(None, **given)[0], {"actor/pg_loss": 1.0}))
    data = rows.copy()
    tu.assign_non_tensor(data, num_mini_batch=2, epochs=1)
    output = client.train_mini_batch(data)
    seen.append({"what": "update", "counts": counts_of(trainer), **tu.get(output, "metrics")})


def main(folder: Path, more: list[str]) -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine", overrides(folder) + more)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = SFTTrainer(config)
    seen: list[dict[str, Any]] = []
    watch(trainer, seen)
    trainer.fit()
    update_actor(trainer, seen)
    if dist.get_rank() == 0:
        engine = type(trainer.engine)
        named = [{"what": "engine", "name": engine.__qualname__, "module": engine.__module__}]
        (folder / "seen.json").write_text(json.dumps(named + seen, default=str))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""GRPO through TRL with noise in the updates: a tiny model, from nothing, learns to say letters in their order.

A few minutes on two cores; nothing is downloaded. Needs trl beside noisescope:

    pip install noisescope trl
    python examples/grpo.py --noise 0
    python examples/grpo.py --noise decay

Generation and reference are clean, the updates are noisy. At the end it says what the policy is worth, clean and
under noise in every operator, with the standard error over the completions.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import noisescope as ns
from noisescope.integrations.transformers import NoiseCallback

LETTERS, TOKENS, GENERATIONS, PROMPTS = "abcdefgh", 12, 8, 8


def tokenizer_of_letters() -> PreTrainedTokenizerFast:
    """One token for each letter."""
    words = {word: number for number, word in enumerate(["<pad>", "<end>", *LETTERS])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>", padding_side="left")


def tiny_model() -> nn.Module:
    """Four layers with random weights."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=len(LETTERS) + 2, pad_token_id=0, eos_token_id=1))


def order(completions: list[str], **_: object) -> list[float]:
    """The share of neighbouring letters of which the second follows the first in the alphabet, and h by a."""
    return [_order(text.replace(" ", "")) for text in completions]


def _order(text: str) -> float:
    follows = [LETTERS[(LETTERS.index(a) + 1) % len(LETTERS)] == b for a, b in itertools.pairwise(text)]
    return sum(follows) / (TOKENS - 1)


def worth(model: nn.Module, tokenizer: PreTrainedTokenizerFast, scale: float) -> tuple[float, float]:
    """The mean reward of 256 sampled completions under noise in every operator, and its standard error."""
    batch = tokenizer([LETTERS[n % len(LETTERS)] for n in range(256)], return_tensors="pt")
    model.eval()
    torch.manual_seed(0)
    with torch.no_grad(), ns.inject(model, ns.noise(scale=scale)):
        out = model.generate(batch["input_ids"], max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=True)
    rewards = order(tokenizer.batch_decode(out[:, 1:], skip_special_tokens=True))
    return statistics.fmean(rewards), statistics.stdev(rewards) / len(rewards) ** 0.5


def trained(model: nn.Module, tokenizer: PreTrainedTokenizerFast, asked: argparse.Namespace) -> nn.Module:
    """The model after GRPO with the noise that was asked for."""
    prompts = Dataset.from_list([{"prompt": LETTERS[n % len(LETTERS)]} for n in range(64)])
    with tempfile.TemporaryDirectory() as folder:
        # TRL reads the reference from where the model came from.
        model.save_pretrained(folder)
        arguments = GRPOConfig(
            folder,
            max_steps=asked.steps,
            seed=asked.seed,
            per_device_train_batch_size=GENERATIONS * PROMPTS,
            num_generations=GENERATIONS,
            max_completion_length=TOKENS,
            generation_kwargs={"min_new_tokens": TOKENS},
            learning_rate=1e-3,
            beta=0.01,
            bf16=False,
            use_cpu=True,
            logging_steps=asked.steps // 5,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = GRPOTrainer(folder, order, arguments, prompts, processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        NoiseCallback(asked.noise, gradient_every=0, seed=asked.seed).attach(trainer)
        trainer.train()
    for row in trainer.state.log_history:
        if "loss" in row:
            names = ("noise_scale", "noise_realised_forward", "noise_realised_backward", "kl")
            figures = ", ".join(f"{name} {row.get(name, 0.0):.4f}" for name in names)
            print(f"step {row['step']:>3}: reward {row['reward']:.3f}, {figures}")
    return trainer.model


def main() -> None:
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", default="decay", help="schedule of the noise, 0 for none (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    tokenizer = tokenizer_of_letters()
    model = trained(tiny_model(), tokenizer, asked)
    for scale in (0.0, 0.05, 0.1, 0.2):
        mean, error = worth(model, tokenizer, scale)
        print(f"noise {scale:4.0%} after training with {asked.noise}: reward {mean:.3f} +- {error:.3f}")


if __name__ == "__main__":
    main()

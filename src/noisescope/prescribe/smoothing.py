"""SmoothQuant: factors that take the size of input channels out of activations and put it into weights.

s_j = max|X_j|^a / max|W_j|^(1 - a) for input channel j, rounded to a power of two, so that folding it changes no bit of
the answer in any dtype. The best a is searched for each fold by the error of int8 in the outputs of its readers. What
profits and is kept is decided in `noisescope.runs.smoothing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from noisescope.inject.weights import rounded
from noisescope.model.folds import GAINS, Fold, divided
from noisescope.model.linears import matrix_of, set_matrix
from noisescope.prescribe.eight_bits import INT8, real_rows, rounded_input

# Factors are powers of two: alphas that are nearer to each other mostly give the same ones.
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
Peaks = Mapping[str, Tensor]


@dataclass(frozen=True)
class Candidate:
    """The factors of one alpha, one for each channel of the writer; None is no smoothing."""

    alpha: float | None
    factors: Tensor


@dataclass
class Tried:
    """The candidates of a fold, the first without factors, and the error of int8 that each makes in the readers."""

    fold: Fold
    candidates: tuple[Candidate, ...]
    errors: list[float] = field(default_factory=list)

    @property
    def best(self) -> int:
        """Which candidate with factors has the least error."""
        return min(range(1, len(self.errors)), key=self.errors.__getitem__)


def candidates_of(model: nn.Module, fold: Fold, peaks: Peaks, alphas: Sequence[float]) -> tuple[Candidate, ...]:
    """No smoothing, and the factors of every alpha."""
    channels = torch.tensor(fold.channels)
    width = int(channels.max()) + 1
    inputs = _by_channel(peaks[fold.readers[0]].cpu(), channels, width)
    columns = [matrix_of(model.get_submodule(path)).abs().amax(0).float().cpu() for path in fold.readers]
    weights = _by_channel(torch.stack(columns).amax(0), channels, width)
    used = (inputs > 0) & (weights > 0)
    sizes = [(inputs.log2() * alpha - weights.log2() * (1 - alpha)).round() for alpha in alphas]
    factors = [torch.where(used, size, 0.0).exp2() for size in sizes]
    return Candidate(None, torch.ones(width)), *map(Candidate, alphas, factors)


def _by_channel(columns: Tensor, channels: Tensor, width: int) -> Tensor:
    """The largest value of the columns that come from one channel of the writer."""
    return torch.zeros(width).scatter_reduce(0, channels, columns, "amax")


def factors_by_reader(chosen: Iterable[tuple[Fold, Candidate]]) -> dict[str, Tensor]:
    """The factor of each input column of every reader."""
    return {path: by.factors[list(fold.channels)] for fold, by in chosen for path in fold.readers}


def try_all(
    model: nn.Module, tried: Sequence[Tried], peaks: Peaks, batches: Iterable[Mapping[str, Tensor]], activations: str
) -> None:
    """Fill in the error of every candidate, on what the readers are given in a run of the model as it is.

    That is the root of the squared error as a share of the squares of the outputs, over the mean of the readers.
    """
    trials = {path: _Reader(model, path, one, peaks[path], activations) for one in tried for path in one.fold.readers}
    kept: Tensor | None = None
    with ExitStack() as stack, torch.no_grad():
        for path, trial in trials.items():
            hook = model.get_submodule(path).register_forward_pre_hook(
                lambda _, given, trial=trial: trial.see(real_rows(given[0], kept).float())
            )
            stack.callback(hook.remove)
        for batch in batches:
            kept = batch.get("attention_mask")
            model(**batch)
    for one in tried:
        shares = torch.stack([trials[path].shares() for path in one.fold.readers])
        one.errors = shares.mean(0).sqrt().tolist()


class _Reader:
    """One linear layer and what each candidate makes of its output."""

    def __init__(self, model: nn.Module, path: str, tried: Tried, peaks: Tensor, activations: str) -> None:
        self._module, self._peaks, self._activations = model.get_submodule(path), peaks, activations
        self._factors = [one.factors[list(tried.fold.channels)].to(peaks) for one in tried.candidates]
        self._squares = [0.0] * len(self._factors)
        self._whole = 0.0

    def see(self, given: Tensor) -> None:
        weight = matrix_of(self._module).float()
        clean = given @ weight.T
        self._whole += float(clean.square().sum())
        for number, by in enumerate(self._factors):
            rough = rounded_input(given / by, self._peaks / by, self._activations) @ rounded(weight * by, INT8).T
            self._squares[number] += float((rough - clean).square().sum())

    def shares(self) -> Tensor:
        """Squared errors over the squares of the output."""
        return torch.tensor(self._squares, dtype=torch.float64) / max(self._whole, torch.finfo(torch.float64).tiny)


@torch.no_grad()
def fold_in(model: nn.Module, fold: Fold, factors: Tensor) -> None:
    """Divide what the writer gives and multiply the columns of the readers, for good."""
    writer, channels = model.get_submodule(fold.writer), list(fold.channels)
    real = _divide_norm(writer, fold.gain, factors) if fold.gain else _divide_rows(writer, fold, factors)
    for path in fold.readers:
        module = model.get_submodule(path)
        weight = matrix_of(module)
        set_matrix(module, (weight.double() * real[channels].to(weight.device)).to(weight.dtype))


def _divide_norm(module: nn.Module, gain: str, factors: Tensor) -> Tensor:
    """The factors that the weight really holds: 1 + w has no room for every factor in a short format."""
    of_weight, _ = GAINS[gain]
    before = of_weight(module.get_parameter("weight").double())
    for name, value in divided(module, gain, factors.double().to(before.device)).items():
        module.get_parameter(name).copy_(value)
    after = of_weight(module.get_parameter("weight").double())
    return torch.where(after == 0, factors.double().to(before.device), before / after).cpu()


def _divide_rows(module: nn.Module, fold: Fold, factors: Tensor) -> Tensor:
    weight = matrix_of(module)
    rows = torch.ones(len(weight), dtype=torch.float64)
    rows[list(fold.channels)] = factors[list(fold.channels)].double()
    set_matrix(module, (weight.double() / rows.to(weight.device)[:, None]).to(weight.dtype))
    if isinstance(module.bias, Tensor):
        module.bias.copy_((module.bias.double() / rows.to(weight.device)).to(module.bias.dtype))
    return factors.double()

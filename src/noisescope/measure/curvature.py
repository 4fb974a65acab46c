"""Second-order sensitivity of the loss to the weights, per group: Hessian traces and the diagonal of the Fisher matrix.

Both are estimates and come with their standard errors. It works through a model's loss or logits alone, and it leaves
weights, gradients and the mode of the model as they were.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from noisescope.core.errors import BadInputError, unknown_name

Batch = Mapping[str, Any]
Groups = Mapping[str, Sequence[nn.Parameter]]
Loss = Callable[[nn.Module, Batch], Tensor]
_ONCE_ONLY = re.compile(r"not implemented|differentiate twice|double.?backward", re.IGNORECASE)
_IGNORED = -100


@dataclass(frozen=True)
class TraceEstimate:
    """The trace of one group's block of the Hessian; the error is that of the probes, not of the choice of batches."""

    trace: float
    standard_error: float
    probes: int
    parameters: int

    @property
    def is_resolved(self) -> bool:
        """Whether the trace differs from zero by more than two standard errors."""
        return abs(self.trace) > 2 * self.standard_error


@dataclass(frozen=True)
class FisherEstimate:
    """The sum of one group's diagonal of the Fisher matrix, averaged over samples; a sample is one row of a batch.

    The standard error is that of the average over samples; NaN for a single one.
    """

    trace: float
    standard_error: float
    samples: int
    tokens: int
    parameters: int

    @property
    def per_token(self) -> float:
        """The same per scored token."""
        return self.trace * self.samples / self.tokens if self.tokens else math.nan


@dataclass(frozen=True)
class Fisher:
    """The estimates by group and, if it was asked for, the diagonal itself by parameter name."""

    groups: dict[str, FisherEstimate]
    diagonal: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Labels:
    """Where the labels of a Fisher matrix come from.

    'model' draws them from the model's own distribution, anew for each of `draws`: the true Fisher matrix. 'data' takes
    those of the batch: the empirical one, a different quantity that agrees only where the model fits the data.
    `shift` is the distance from an output to the label it is scored on: 1 in causal language models, else 0.
    """

    source: Literal["model", "data"] = "model"
    shift: int = 1
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.source not in ("model", "data"):
            raise unknown_name("source of labels", self.source, ("model", "data"))
        if self.draws < 1 or self.shift < 0:
            raise BadInputError(f"draws {self.draws}, shift {self.shift}: expected draws >= 1 and shift >= 0.")


def parameter_groups(model: nn.Module, paths: Sequence[str] | None = None) -> dict[str, list[nn.Parameter]]:
    """The parameters under each path, those elsewhere under ''; without paths, those of each module.

    Weights that are kept as integers have no gradient and are in no group.
    """
    groups: dict[str, list[nn.Parameter]] = {path: [] for path in paths or ()}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        owner = name.rpartition(".")[0]
        if paths is not None:
            owner = next((path for path in paths if name.startswith(f"{path}.")), "")
        groups.setdefault(owner, []).append(parameter)
    return groups


def model_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that a model reports for a batch with labels."""
    loss = getattr(model(**batch), "loss", None)
    if not isinstance(loss, Tensor):
        raise BadInputError(
            f"{type(model).__name__} reported no loss; add labels to the batch, or pass loss= a function of the model "
            "and a batch."
        )
    return loss


def gradient_norm(tensors: Iterable[Tensor | None]) -> float:
    """The Euclidean norm of gradients taken together, in float64; those that are None are left out."""
    return math.hypot(*(float(torch.linalg.vector_norm(t.double())) for t in tensors if t is not None))


def hessian_traces(
    model: nn.Module,
    batches: Iterable[Batch],
    groups: Groups | None = None,
    *,
    loss: Loss = model_loss,
    probes: int = 16,
    seed: int = 0,
) -> dict[str, TraceEstimate]:
    """The Hessian trace of the batches' mean loss in each group, from one Hessian-vector product per probe for all.

    Hutchinson: for random signs v, v_g . (H v)_g has the mean tr(H_gg), because the signs of two groups are independent
    and their cross terms have mean zero. Each batch is differentiated once and kept until its probes are done.
    """
    if probes < 2:
        raise BadInputError(f"probes {probes}: expected 2 or more, or there is no standard error.")
    groups = parameter_groups(model) if groups is None else groups
    parameters = _united(groups)
    samples, count = torch.zeros(probes, len(groups), dtype=torch.float64), 0
    signs = _Signs(seed)
    with _differentiable(model, parameters):
        for batch in batches:
            samples += _quadratic_forms(_Point(model, batch, loss), groups, probes, signs)
            count += 1
    if not count:
        raise BadInputError("no batches; expected at least one.")
    samples /= count
    errors = samples.std(0) / math.sqrt(probes)
    return {
        name: TraceEstimate(float(mean), float(error), probes, sum(p.numel() for p in members))
        for (name, members), mean, error in zip(groups.items(), samples.mean(0), errors, strict=True)
    }


@dataclass(frozen=True)
class _Point:
    """Where a loss is differentiated."""

    model: nn.Module
    batch: Batch
    loss: Loss


class _Signs:
    """Random signs, drawn where the parameters are."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def like(self, parameter: Tensor) -> Tensor:
        device = parameter.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        half = torch.full_like(parameter, 0.5, requires_grad=False)
        return torch.bernoulli(half, generator=self._generators[device]).mul_(2).sub_(1)


def _quadratic_forms(point: _Point, groups: Groups, probes: int, signs: _Signs) -> Tensor:
    """v_g . (H v)_g of one batch for each probe and group."""
    parameters = _united(groups)
    try:
        gradients = torch.autograd.grad(
            point.loss(point.model, point.batch), parameters, create_graph=True, allow_unused=True
        )
        _refuse_untouched(groups, {id(p) for p, g in zip(parameters, gradients, strict=True) if g is not None})
        return torch.stack([_one_probe(gradients, groups, signs) for _ in range(probes)])
    except RuntimeError as problem:
        if not _ONCE_ONLY.search(str(problem)):
            raise
        raise BadInputError(
            f"{type(point.model).__name__} cannot be differentiated twice, which a Hessian needs: {problem} Fused "
            "attention is the usual reason; load the model with attn_implementation='eager', or call "
            "model.set_attn_implementation('eager')."
        ) from problem


def _one_probe(gradients: Sequence[Tensor | None], groups: Groups, signs: _Signs) -> Tensor:
    parameters = _united(groups)
    probe = [signs.like(p) for p in parameters]
    # A gradient that no longer depends on any weight adds nothing to the Hessian.
    live = [(g, v) for g, v in zip(gradients, probe, strict=True) if g is not None and g.requires_grad]
    if not live:
        return torch.zeros(len(groups), dtype=torch.float64)
    products = torch.autograd.grad(
        [g for g, _ in live],
        parameters,
        grad_outputs=[v for _, v in live],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    forms = {
        id(p): float((v.double() * hv.double()).sum()) for p, v, hv in zip(parameters, probe, products, strict=True)
    }
    return torch.tensor([sum(forms[id(p)] for p in members) for members in groups.values()], dtype=torch.float64)


def diagonal_fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    groups: Groups | None = None,
    labels: Labels = Labels(),
    *,
    keep_diagonal: bool = False,
) -> Fisher:
    """The diagonal of the Fisher matrix in each group: squared gradients of the log-likelihood of each row.

    Rows are differentiated one by one: the square of a batch's mean gradient is something else. Only positions that
    the attention mask keeps, and that have a label where the batch has labels, are scored.
    """
    groups = parameter_groups(model) if groups is None else groups
    tally = _Tally(groups, {id(p): name for name, p in model.named_parameters()} if keep_diagonal else {})
    generators: dict[torch.device, torch.Generator] = {}
    with _differentiable(model, tally.parameters):
        for row in itertools.chain.from_iterable(map(_rows, batches)):
            scores = _scores(model, row, labels)
            device = scores.log_probabilities.device
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(labels.seed)
            tally.add(scores, labels, generators[device])
    return tally.result()


@dataclass(frozen=True)
class _Scores:
    """Log-probabilities of the scored positions of one row, and the labels there where the batch has any."""

    log_probabilities: Tensor
    targets: Tensor | None

    def likelihood(self, source: str, generator: torch.Generator) -> Tensor:
        """The summed log-likelihood of labels drawn from the model, or of those of the data."""
        targets = self.targets
        if source == "model":
            chances = self.log_probabilities.detach().exp()
            targets = torch.multinomial(chances, 1, generator=generator).flatten()
        if targets is None:
            raise BadInputError("the batch has no labels; add them, or draw them from the model: Labels('model').")
        return self.log_probabilities.gather(-1, targets[:, None]).sum()


class _Tally:
    """Sums of squared gradients over rows."""

    def __init__(self, groups: Groups, names: Mapping[int, str]) -> None:
        self.groups = groups
        self.parameters = _united(groups)
        self._diagonal = {
            names[id(p)]: torch.zeros_like(p, dtype=torch.float32, requires_grad=False)
            for p in self.parameters
            if id(p) in names
        }
        self._names = names
        self._touched: set[int] = set()
        self._rows: list[Tensor] = []
        self._tokens = 0

    def add(self, scores: _Scores, labels: Labels, generator: torch.Generator) -> None:
        """One row: the mean over draws of each weight's squared gradient."""
        if not len(scores.log_probabilities):
            return
        sums = dict.fromkeys((id(p) for p in self.parameters), 0.0)
        for draw in range(labels.draws):
            gradients = torch.autograd.grad(
                scores.likelihood(labels.source, generator),
                self.parameters,
                retain_graph=draw + 1 < labels.draws,
                allow_unused=True,
            )
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    sums[id(parameter)] += self._square(parameter, gradient, 1 / labels.draws)
        row = [sum(sums[id(p)] for p in members) for members in self.groups.values()]
        self._rows.append(torch.tensor(row, dtype=torch.float64))
        self._tokens += len(scores.log_probabilities)

    def _square(self, parameter: nn.Parameter, gradient: Tensor, weight: float) -> float:
        self._touched.add(id(parameter))
        squares = gradient.float().square()
        if id(parameter) in self._names:
            self._diagonal[self._names[id(parameter)]].add_(squares, alpha=weight)
        return float(squares.sum(dtype=torch.float64)) * weight

    def result(self) -> Fisher:
        if not self._rows:
            raise BadInputError("no row has a position to score; expected batches with tokens that are not masked.")
        _refuse_untouched(self.groups, self._touched)
        rows = torch.stack(self._rows)
        n = len(rows)
        errors = rows.std(0) / math.sqrt(n) if n > 1 else torch.full_like(rows[0], torch.nan)
        estimates = {
            name: FisherEstimate(float(mean), float(error), n, self._tokens, sum(p.numel() for p in members))
            for (name, members), mean, error in zip(self.groups.items(), rows.mean(0), errors, strict=True)
        }
        return Fisher(estimates, {name: squares / n for name, squares in self._diagonal.items()})


def _scores(model: nn.Module, row: Batch, labels: Labels) -> _Scores:
    inputs = {name: value for name, value in row.items() if name != "labels"}
    output = model(**inputs)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise BadInputError(f"{type(model).__name__} returned no logits; expected a tensor or an output with .logits.")
    # Sums of exponents over a vocabulary need float32, whatever the model's dtype.
    found = logits.float().log_softmax(-1)
    targets, mask = row.get("labels"), row.get("attention_mask")
    sequence = found.dim() == 3
    if targets is not None and sequence and labels.shift:
        found, targets = found[:, : -labels.shift], targets[:, labels.shift :]
    found = found.reshape(-1, found.shape[-1])
    if targets is not None:
        targets = targets.reshape(-1).to(found.device)
        kept = targets != _IGNORED
        return _Scores(found[kept], targets[kept])
    if mask is not None and sequence and mask.numel() == len(found):
        found = found[mask.reshape(-1).bool().to(found.device)]
    return _Scores(found, None)


def _rows(batch: Batch) -> Iterator[Batch]:
    """The rows of a batch, each a batch of one."""
    sizes = [len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()]
    if not sizes:
        raise BadInputError(f"a batch of {', '.join(batch) or 'nothing'}: expected at least one tensor with rows.")
    for i in range(sizes[0]):
        yield {
            name: value[i : i + 1] if isinstance(value, Tensor) and value.dim() and len(value) == sizes[0] else value
            for name, value in batch.items()
        }


def _united(groups: Groups) -> list[nn.Parameter]:
    """Every parameter once, also where groups share it."""
    return list({id(p): p for members in groups.values() for p in members}.values())


def _refuse_untouched(groups: Groups, touched: set[int]) -> None:
    idle = [name for name, members in groups.items() if not any(id(p) in touched for p in members)]
    if idle:
        raise BadInputError(
            f"the loss does not depend on any weight of {', '.join(map(repr, idle))}: a figure of 0 would be taken for "
            "robust. Leave these groups out, or give batches that use them."
        )


@contextmanager
def _differentiable(model: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Gradients for these parameters of a model and for no others."""
    wanted = {id(p) for p in parameters}
    before = [(p, p.requires_grad) for p in {id(p): p for p in [*model.parameters(), *parameters]}.values()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in wanted)
        with torch.enable_grad():
            yield
    finally:
        for parameter, asked in before:
            parameter.requires_grad_(asked)

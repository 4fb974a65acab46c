"""The engine at work on a real model, SmolLM2-135M-Instruct: a tour of nine short experiments.

It measures a few sentences with one draw of noise each. That is enough to see what the engine does, not to judge a
model.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import noisescope as ns

TEXTS = (
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is Madrid. The capital of "
    "Germany is Berlin. The capital of Japan is Tokyo. The capital of Egypt is Cairo.",
    "Water boils at one hundred degrees Celsius at sea level. On a high mountain the air is thinner, the pressure is "
    "lower, and water boils at a lower temperature, so it takes longer to cook an egg.",
    "Tom had five apples. He gave two apples to his sister, so he had three apples left. Then his mother gave him four "
    "more apples, so he had seven apples in total.",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n\ndef multiply(a, b):\n"
    "    return a * b\n",
)
LENGTH = 32
SCALE = 0.05
FAULTY_LAYER = 10
SMALL_SCALES = (1e-2, MIDDLE_SCALE := 1e-3, 1e-4)
BAR = 40
START = time.monotonic()


@dataclass(frozen=True)
class Subject:
    """The model under test, the token ids it reads, and what it answers undisturbed."""

    model: Any
    ids: Tensor
    clean: Tensor

    @property
    def layers(self) -> Any:
        """The stack of layers."""
        return self.model.model.layers

    def ask(self) -> Tensor:
        """Log-probabilities of every next token."""
        return log_probabilities(self.model, self.ids)


@torch.no_grad()
def log_probabilities(model: Any, ids: Tensor) -> Tensor:
    """Log-probabilities of every next token of a batch."""
    answer: Tensor = model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
    return answer


def say(line: str = "") -> None:
    """A result."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def progress(what: str) -> None:
    """What the reader waits for."""
    sys.stderr.write(f"[{time.monotonic() - START:3.0f} s] {what}\n")
    sys.stderr.flush()


def title(number: int, text: str, waiting_for: str) -> None:
    """The head of one experiment."""
    say(f"\n{number}. {text}")
    progress(waiting_for)


def losses(answer: Tensor, ids: Tensor) -> Tensor:
    """Mean negative log-probability of the tokens that really come next, one value per text, in nats."""
    return -answer[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].mean(-1)


def divergence(clean: Tensor, noisy: Tensor) -> float:
    """KL(clean || noisy) per token, in nats."""
    return float((clean.exp() * (clean - noisy)).sum(-1).mean())


def changed_choices(clean: Tensor, noisy: Tensor) -> float:
    """Share of tokens whose most probable successor is another one."""
    return float((clean.argmax(-1) != noisy.argmax(-1)).float().mean())


def meet() -> Subject:
    """Load the model and the texts."""
    progress("loading SmolLM2-135M-Instruct (the first time it is fetched once, 93 MB)")
    loaded = ns.load("demo")
    tokenizer: Any = loaded.tokenizer
    ids = torch.tensor([tokenizer(text)["input_ids"][:LENGTH] for text in TEXTS])
    return Subject(loaded.model, ids, log_probabilities(loaded.model, ids))


def show_sites(subject: Subject) -> Sequence[str]:
    """Every place that noise can reach. Returns the operators among them."""
    title(1, "Where noise can go: the sites of the model", "finding the sites")
    found = ns.sites(subject.model)
    inside = Counter(site.operator for site in found if site.layer is not None)
    outside = Counter(site.operator for site in found if site.layer is None)
    count = len(subject.layers)
    say(f"   {len(found)} sites: {count} layers, and the final norm and output head outside them.")
    say(f"   {'operator':<12} {'per layer':>9} {'outside':>8}")
    for operator, sites in inside.items():
        say(f"   {operator:<12} {sites / count:>9g} {outside[operator]:>8}")
    say("   The model runs fused attention; its softmax and its two products (one site, run twice) count too.")
    return list(inside)


def show_clean(subject: Subject) -> None:
    """What the model answers undisturbed."""
    title(2, "The model undisturbed: loss per text, in nats per token", "reading the texts")
    for text, loss in zip(TEXTS, losses(subject.clean, subject.ids), strict=True):
        first = " ".join(text.split())[:48]
        say(f"   {loss:5.2f}  {first}...")


def show_control(subject: Subject) -> str:
    """Strength 0 and equal seeds. Returns what was seen, as all that follow do."""
    title(3, "The control: does the instrument itself change anything?", "running the controls")
    with ns.inject(subject.model, ns.noise(scale=0.0)) as handle:
        idle = subject.ask()
    say(f"   scale 0, {handle.stats.total_forward} operator calls passed through: {same(idle, subject.clean)}")
    first, again, other = (noisy(subject, seed=seed)[0] for seed in (1, 1, 2))
    say(f"   scale {SCALE:g}, seed 1 twice: {same(first, again)}")
    say(f"   scale {SCALE:g}, seed 1 and seed 2: {same(first, other)}")
    say(f"   after all that, without noise: {same(subject.ask(), subject.clean)}")
    return f"With scale 0 the answer is {same(idle, subject.clean)}."


def same(one: Tensor, other: Tensor) -> str:
    """Whether two answers agree to the last bit."""
    return "equal to the last bit" if torch.equal(one, other) else "different"


def noisy(subject: Subject, corruption: ns.Corruption | None = None, **where: Any) -> tuple[Tensor, Any]:
    """The answer under a corruption, 5 % relative noise unless told, and the statistics of the injection."""
    with ns.inject(subject.model, corruption or ns.noise(scale=SCALE), **where) as handle:
        answer = subject.ask()
    return answer, handle.stats


def show_operators(subject: Subject, operators: Sequence[str]) -> str:
    """Noise in one kind of operator at a time."""
    title(4, f"{SCALE:.0%} relative noise in one kind of operator at a time", "one operator at a time")
    say(f"   {'operator':<12} {'calls':>5} {'realised':>9} {'loss':>6} {'KL to clean':>12} {'other top choice':>17}")
    harm = {}
    for operator in operators:
        answer, stats = noisy(subject, operators=operator)
        harm[operator] = divergence(subject.clean, answer)
        realised = statistics.median(site.relative for site in stats.by_site().values())
        figures = f"{stats.total_forward:>5} {realised:>9.2%}"
        loss = losses(answer, subject.ids).mean()
        other = changed_choices(subject.clean, answer)
        say(f"   {operator:<12} {figures} {loss:>6.2f} {harm[operator]:>12.4f} {other:>17.1%}")
    say(f"   {'(none)':<12} {'':>15} {losses(subject.clean, subject.ids).mean():>6.2f}")
    return f"Noise does most harm in {max(harm, key=lambda name: harm[name])}, all calls of an operator together."


def show_layers(subject: Subject) -> str:
    """Noise in the linear operators of one layer at a time."""
    title(5, f"{SCALE:.0%} noise in the linear operators of one layer at a time", "one layer at a time")
    harm = {}
    for layer in range(len(subject.layers)):
        answer, _ = noisy(subject, layers=layer, operators="linear")
        harm[layer] = divergence(subject.clean, answer)
    most = max(harm.values())
    say(f"   layer  {'KL to clean':>11}")
    for layer, value in harm.items():
        say(f"   {layer:>5}  {value:>11.5f}  {'#' * max(1, round(BAR * value / most))}")
    worst = max(harm, key=lambda layer: harm[layer])
    ratio = most / statistics.median(harm.values())
    return f"Noise in the linear operators does most harm in layer {worst}: {ratio:.0f} times the median layer."


@dataclass(frozen=True)
class Planted:
    """A fault of the simulated machine, and the part of a layer that it sits in; no part is the whole layer."""

    words: str
    corruption: ns.Corruption
    part: str = ""


FAULTS = (
    Planted("down_proj: channel 100 stuck at 3 rms", ns.fault("stuck_channel", 3.0, channel=100), part="mlp.down_proj"),
    Planted("all linears: dead zone below 0.3 rms", ns.fault("dead_zone", 0.3)),
    Planted("all linears: saturation at 0.3 max", ns.fault("saturation", 0.3)),
)


def show_faults(subject: Subject) -> str:
    """A machine that is broken in one layer, and where its error is seen first."""
    title(6, f"A simulated hardware fault in layer {FAULTY_LAYER}", "planting faults")
    say(f"   {'fault':<38} {'KL to clean':>11} {'other top choice':>17} {'first wrong layer':>18}")
    _, healthy = look_inside(subject)
    places = set()
    for planted in FAULTS:
        # A part of a model can stand in place of the model: then only what runs inside that part is reached.
        target = subject.layers[FAULTY_LAYER].get_submodule(planted.part)
        with ns.inject(target, planted.corruption, operators="linear"):
            answer, sick = look_inside(subject)
        first = next(i for i, (a, b) in enumerate(zip(healthy, sick, strict=True)) if not torch.equal(a, b))
        places.add(first)
        harm, other = divergence(subject.clean, answer), changed_choices(subject.clean, answer)
        say(f"   {planted.words:<38} {harm:>11.4f} {other:>17.1%} {first:>18}")
    say("   Before the first wrong layer every value is equal to the last bit. After it the error is carried on.")
    return f"Faults planted in layer {FAULTY_LAYER} show first in layer {', '.join(map(str, sorted(places)))}."


@torch.no_grad()
def look_inside(subject: Subject) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The answer, and the output of every layer on the way to it."""
    seen = subject.model(input_ids=subject.ids, use_cache=False, output_hidden_states=True)
    return seen.logits.float().log_softmax(-1), seen.hidden_states[1:]


def show_phases(subject: Subject) -> str:
    """Noise in the forward pass, in the backward pass, and in both."""
    title(7, f"Training: {SCALE:.0%} noise in linear, forward against backward", "one training step per row")
    say(f"   {'noise in':<22} {'calls':>11} {'loss':>10} {'gradient off by':>16}")
    clean_loss, clean = learn(subject)
    say(f"   {'(none)':<22} {'':>11} {clean_loss:>10.6f}")
    found = {}
    for phases in (("forward",), ("backward",), ("forward", "backward")):
        with ns.inject(subject.model, ns.noise(scale=SCALE), operators="linear", phases=phases) as handle:
            loss, gradient = learn(subject)
        calls = f"{handle.stats.total_forward} + {handle.stats.total_backward}"
        off = float((gradient - clean).norm() / clean.norm())
        found[phases] = loss, off
        say(f"   {' and '.join(phases):<22} {calls:>11} {loss:>10.6f} {off:>16.1%}")
    say("   The gradient is that of q_proj in layer 0.")
    loss, off = found["backward",]
    return f"Backward noise changes the gradient by {off:.0%} and the loss by {abs(loss - clean_loss):g}."


def learn(subject: Subject) -> tuple[float, Tensor]:
    """The loss of a training step, and its gradient at the first weight of the stack."""
    loss = subject.model(input_ids=subject.ids, labels=subject.ids, use_cache=False).loss
    loss.backward()
    gradient = subject.layers[0].self_attn.q_proj.weight.grad
    subject.model.zero_grad(set_to_none=True)
    return loss.item(), gradient


def show_short_format(subject: Subject) -> str:
    """Noise below the resolution of bfloat16."""
    title(8, "Small noise in bfloat16, where neighbouring values are 0.4 to 0.8 % apart", "turning to bfloat16")
    subject.model.to(torch.bfloat16)
    plain = add_plainly(subject)
    say(f"   {'':>8} {'added in bfloat16':>25} {'by noisescope':>25}")
    say(f"   {'asked':>8} {'realised':>16} {'moved':>8} {'realised':>16} {'moved':>8}")
    usual = kept = 0.0
    for scale in SMALL_SCALES:
        _, stats = noisy(subject, ns.noise(scale=scale), operators="linear")
        ours = [(site.relative, site.changed / site.measured) for site in stats.by_site().values()]
        columns = [*over_sites(plain[scale]), *over_sites(ours)]
        say("   {:>8g} {:>16.6f} {:>8.2%} {:>16.6f} {:>8.2%}".format(scale, *columns))
        if scale == MIDDLE_SCALE:
            usual, kept = columns[0] / scale, columns[2] / scale
    say("   Over all linear sites. Noise added in the usual way is lost when the sum is rounded.")
    return f"Of noise of {MIDDLE_SCALE} in bfloat16 {kept:.0%} arrives; added in the usual way {usual:.0%}."


def over_sites(figures: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The root mean square of the strengths, and the mean of the shares of values that moved."""
    strengths, shares = zip(*figures, strict=True)
    return statistics.fmean(x * x for x in strengths) ** 0.5, statistics.fmean(shares)


def add_plainly(subject: Subject) -> dict[float, list[tuple[float, float]]]:
    """Relative noise added in the model's own format: per scale and linear output, its strength and its reach."""
    found: dict[float, list[tuple[float, float]]] = {scale: [] for scale in SMALL_SCALES}
    random = torch.Generator().manual_seed(0)

    def watch(module: Any, args: Any, y: Tensor) -> None:
        draw = torch.randn(y.shape, generator=random).to(y.dtype)
        for scale, figures in found.items():
            error = (y + draw * y.abs() * scale).float() - y.float()
            figures.append((float(error.norm() / y.float().norm()), float((error != 0).float().mean())))

    hooks = [m.register_forward_hook(watch) for m in subject.model.modules() if isinstance(m, torch.nn.Linear)]
    subject.ask()
    for hook in hooks:
        hook.remove()
    return found


def show_error(subject: Subject) -> None:
    """A question that the model cannot answer."""
    title(9, "What is not there is an error, never 'robust'", "asking for an operator that is not there")
    try:
        noisy(subject, operators="gelu")
    except ns.NoisescopeError as error:
        say(f"   {type(error).__name__}: {str(error).split('. ')[0]}.")


def main() -> None:
    """Run the experiments and sum up."""
    subject = meet()
    say("noisescope: the engine at work on SmolLM2-135M-Instruct")
    operators = show_sites(subject)
    show_clean(subject)
    seen = [
        show_control(subject),
        show_operators(subject, operators),
        show_layers(subject),
        show_faults(subject),
        show_phases(subject),
        show_short_format(subject),
    ]
    show_error(subject)
    say("\nWhat was seen")
    for sentence in seen:
        say(f"   - {sentence}")
    say(f"   One draw on {len(TEXTS)} short texts, {time.monotonic() - START:.0f} seconds. See docs/engine.md.")


if __name__ == "__main__":
    main()

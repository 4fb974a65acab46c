"""Watching real model code: what is seen is what went through, padding aside, and watching changes nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cases import batch, make
from noisescope.core.errors import BadInputError, NeverFiredError
from noisescope.measure.observer import ChannelObserver, choose_modules
from noisescope.measure.outliers import ChannelSummary, find_outliers, stream_growth

LAYERS = ["model.layers.0", "model.layers.1"]


def by_site(observer: ChannelObserver) -> dict[tuple[str, str], ChannelSummary]:
    return {(s.path, s.side): s for s in observer.summaries()}


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@contextmanager
def stored(model: nn.Module, path: str) -> Iterator[dict[str, list[Tensor]]]:
    """Every input and output of one module, kept."""
    kept: dict[str, list[Tensor]] = {"input": [], "output": []}

    def keep(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        kept["input"].append(args[0].detach().clone())
        kept["output"].append(output.detach().clone())

    handle = model.get_submodule(path).register_forward_hook(keep)
    yield kept
    handle.remove()


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (None, ["0.self_attn.o_proj", "0.mlp.gate_proj", "0.mlp.down_proj"]),
        (["o_proj"], ["0.self_attn.o_proj"]),
        ("mlp.down_proj", ["0.mlp.down_proj"]),
        (["layers.0.*"], ["0.self_attn." + n for n in ("q_proj", "k_proj", "v_proj", "o_proj")]
         + ["0.mlp." + n for n in ("gate_proj", "up_proj", "down_proj")]),
        (["*.[qk]_proj"], ["0.self_attn.q_proj", "0.self_attn.k_proj"]),
        ([r"self_attn\.(q|o)_proj$", "up_proj"], ["0.self_attn.q_proj", "0.self_attn.o_proj", "0.mlp.up_proj"]),
        (["q_proj|v_proj"], ["0.self_attn.q_proj", "0.self_attn.v_proj"]),
        (["model.layers.0.mlp"], ["0.mlp"]),
    ],
)  # fmt: skip
def test_patterns(patterns: Any, chosen: list[str]) -> None:
    found = [path for path in choose_modules(make("llama"), patterns) if path.startswith("model.layers.0")]
    assert found == [f"model.layers.{path}" for path in chosen]


def test_a_pattern_for_layer_1_does_not_take_layer_10() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2) for _ in range(12)])})
    assert choose_modules(model, ["layers.1"]) == ("layers.1",)
    assert choose_modules(nn.Sequential(model), ["layers.1*"]) == ("0.layers.1", "0.layers.10", "0.layers.11")


def test_linear_layers_in_another_spelling() -> None:
    assert choose_modules(make("gpt2"), ["c_proj"])[:2] == ("transformer.h.0.attn.c_proj", "transformer.h.0.mlp.c_proj")
    assert choose_modules(make("mixtral")) == tuple(f"{layer}.self_attn.o_proj" for layer in LAYERS)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["o_proj", "oproj"], "'oproj' names no linear module; .*down_proj, gate_proj"),
        (["("], r"'\(' names no"),
        ([], "neither patterns nor a stream"),
    ],
)
def test_patterns_that_name_nothing(patterns: list[str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        ChannelObserver(make("llama"), patterns)
    with pytest.raises(BadInputError, match="c_attn, c_fc, c_proj, lm_head"):
        choose_modules(make("gpt2"))


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma"])
def test_what_is_seen_is_what_went_through(name: str) -> None:
    model, path = make(name), "model.layers.1.mlp.down_proj"
    with stored(model, path) as kept, ChannelObserver(model, sides=("input", "output")) as observer:
        for rows in (2, 3):
            model(**batch(rows=rows, length=7))
    for side in ("input", "output"):
        rows = torch.cat([t.reshape(-1, t.shape[-1]) for t in kept[side]]).double()
        found = by_site(observer)[path, side]
        assert found.tokens == 35
        assert found.peaks == tuple(rows.abs().amax(0).tolist())
        assert found.means == pytest.approx(rows.mean(0).tolist(), abs=1e-7)
        assert found.deviations == pytest.approx(rows.std(0, correction=0).tolist(), rel=1e-5)
    # Two layers, three modules, two sides.
    assert len(observer.summaries()) == 12


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_seen(side: str) -> None:
    model, path = make("llama"), "model.layers.1.mlp.gate_proj"
    texts = [torch.arange(5, 5 + n) for n in (3, 6, 4)]
    with ChannelObserver(model, ["gate_proj"]) as alone:
        for text in texts:
            model(input_ids=text[None])
    blank = [torch.zeros(6 - len(text)).long() for text in texts]
    joined = [torch.cat([b, t] if side == "left" else [t, b]) for b, t in zip(blank, texts, strict=True)]
    ids = torch.stack(joined)
    with ChannelObserver(model, ["gate_proj"]) as padded:
        mask = (ids > 0).long()
        model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    one, two = by_site(alone)[path, "output"], by_site(padded)[path, "output"]
    assert one.tokens == two.tokens == 13
    assert two.peaks == pytest.approx(one.peaks, rel=1e-4)
    assert two.means == pytest.approx(one.means, abs=1e-5)
    assert two.position_peaks == pytest.approx(one.position_peaks, rel=1e-4)
    assert two.peak_positions == one.peak_positions
    assert two.peak_tokens == one.peak_tokens
    with ChannelObserver(model, ["gate_proj"]) as blind:
        model(input_ids=ids)
    assert by_site(blind)[path, "output"].tokens == 18


def test_a_mask_is_not_kept_for_the_next_call() -> None:
    model = make("llama")
    with ChannelObserver(model, ["o_proj"]) as observer:
        model(**batch(), attention_mask=torch.tensor([[1] * 6, [1] * 3 + [0] * 3]))
        with pytest.raises(IndexError):
            model(batch()["input_ids"] + 1000, attention_mask=torch.tensor([[1] * 6, [1] * 2 + [0] * 4]))
        model.model(**batch())
    assert observer.summaries()[0].tokens == 9 + 12


def test_generation_with_a_cache() -> None:
    model = make("llama")
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with ChannelObserver(model, ["o_proj"]) as observer, torch.no_grad():
        prompts = batch(length=4)["input_ids"]
        model.generate(prompts, attention_mask=mask, max_new_tokens=3, do_sample=False, eos_token_id=-1, use_cache=True)
    found = observer.summaries()[0]
    # Six tokens of the prompts, then one for each text in two more calls: the third token needs no call of its own.
    assert found.tokens == 6 + 2 * 2
    assert found.position_peaks[4] > 0
    assert found.unplaced == 0


def test_the_first_token_and_delimiters() -> None:
    model, ids = make("llama"), batch(rows=2, length=6)["input_ids"]
    stop = int(ids[1, 3])
    path = "model.layers.0.self_attn.o_proj"
    with stored(model, path) as kept, ChannelObserver(model, [path], delimiters=[stop]) as observer:
        model(input_ids=ids)
    sizes = kept["output"][0].abs()
    first, delimiters, other = observer.summaries()[0].place_peaks
    assert list(first) == sizes[:, 0].amax(0).tolist()
    assert list(delimiters) == sizes[1, 3].tolist()
    plain = torch.ones_like(ids, dtype=torch.bool)
    plain[:, 0] = plain[1, 3] = False
    assert list(other) == sizes[plain].amax(0).tolist()


def test_rows_that_a_router_has_sorted_have_no_place() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expert, self.flat = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            return self.expert(x.reshape(-1, 4)[:5]).sum() + self.flat(x.reshape(-1, 4)).sum()

    model, mask = Routed(), torch.tensor([[1, 1, 0], [1, 1, 1]])
    with ChannelObserver(model, ["expert", "flat"]) as observer:
        model(torch.ones(2, 3, 4), attention_mask=mask)
    found = by_site(observer)
    assert (found["expert", "output"].tokens, found["expert", "output"].unplaced) == (5, 5)
    # Rows as many as the batch has tokens are taken to be in its order.
    assert (found["flat", "output"].tokens, found["flat", "output"].unplaced) == (5, 0)


def step(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    output = model(**batch(labels=True))
    gradients = torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
    return output.logits.detach(), [g for g in gradients if g is not None]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "bert"])
@pytest.mark.parametrize("gradients", [False, True])
def test_outputs_and_gradients_are_the_same_to_the_bit(name: str, gradients: bool) -> None:
    model = make(name)
    linear = [".*(proj|dense|c_fc)"]
    logits, weights = step(model)
    state = torch.get_rng_state()
    with ChannelObserver(model, linear, sides=("input", "output"), gradients=gradients) as observer:
        watched, watched_weights = step(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(watched, logits)
    assert all(torch.equal(a, b) for a, b in zip(weights, watched_weights, strict=True))
    assert all(bool(s.squared_gradients) == gradients for s in observer.summaries())
    assert hooks_of(model) == 0


def test_squared_gradients_by_channel() -> None:
    model, path = make("llama"), "model.layers.0.mlp.down_proj"
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        output.register_hook(lambda gradient: seen.append(gradient.detach().clone()))

    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with ChannelObserver(model, ["down_proj"], gradients=True) as observer:
        handle = model.get_submodule(path).register_forward_hook(keep)
        model(**batch(labels=True), attention_mask=mask).loss.backward()
    handle.remove()
    expected = seen[0][mask.bool()].double().square().sum(0)
    found = by_site(observer)[path, "output"]
    assert found.squared_gradients == pytest.approx(expected.tolist(), rel=1e-6)
    assert find_outliers(found).by_fisher == (int(expected.argmax()),)


def test_hooks_are_removed_when_something_is_raised() -> None:
    model = make("llama")
    observer = ChannelObserver(model)
    handle = model.lm_head.register_forward_pre_hook(lambda *_: [].pop())
    with pytest.raises(IndexError, match="empty list"), observer:
        model(**batch())
    handle.remove()
    assert hooks_of(model) == 0
    assert len(observer.summaries()) == 6


def test_hooks_are_removed_when_they_cannot_all_be_set() -> None:
    model = make("llama")
    observer = ChannelObserver(model)
    del model.model.layers[1]
    with pytest.raises(AttributeError), observer:
        pass
    assert hooks_of(model) == 0


def test_attaching_twice_watches_once_and_again_adds() -> None:
    model = make("llama")
    observer = ChannelObserver(model, ["o_proj"])
    observer.attach()
    with observer:
        model(**batch())
    model(**batch())
    assert observer.summaries()[0].tokens == 12
    with observer:
        model(**batch())
    assert observer.summaries()[0].tokens == 24
    observer.reset()
    with pytest.raises(NeverFiredError, match="run the model on a batch"):
        observer.summaries()


def test_modules_that_were_never_called_are_listed() -> None:
    model = nn.ModuleDict({"a_proj": nn.Linear(2, 2), "b_proj": nn.Linear(2, 2)})
    with ChannelObserver(model, ["*_proj"]) as observer:
        model["a_proj"](torch.ones(1, 3, 2))
    assert observer.silent == ("b_proj",)
    assert [s.path for s in observer.summaries()] == ["a_proj"]


def test_the_residual_stream() -> None:
    model = make("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(200)
    with ChannelObserver(model, ["o_proj"], sides=("input",), stream=LAYERS) as observer:
        model(**batch())
    points = stream_growth([s for s in observer.summaries() if s.path in LAYERS])
    assert [p.path for p in points] == LAYERS
    assert points[1].growth > 5 * points[0].growth
    with ChannelObserver(model, [], stream=LAYERS) as alone:
        model(**batch())
    assert stream_growth(alone.summaries()) == points
    both = ChannelObserver(model, ["o_proj"], sides=("input",), stream=["model.layers.0.self_attn.o_proj"])
    assert both.sites["model.layers.0.self_attn.o_proj"] == ("input", "output")
    for wrong in ({"stream": ["model.layer.0"]}, {"sides": ["outputs"]}):
        with pytest.raises(BadInputError, match=r"is no module|Did you mean 'output'"):
            ChannelObserver(model, **wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planted_channels_are_found_and_nothing_else(dtype: torch.dtype) -> None:
    config = transformers.Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=2, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=256, bos_token_id=1, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.Qwen2ForCausalLM(config).to(dtype).eval()
    planted = {("model.layers.1.mlp.down_proj", "output"): (17, 500), ("model.layers.0.mlp.gate_proj", "input"): (3,)}

    def outliers() -> dict[tuple[str, str], tuple[int, ...]]:
        with torch.no_grad(), ChannelObserver(model, sides=("input", "output")) as observer:
            model(**batch(rows=3, length=40))
        found = [find_outliers(s) for s in observer.summaries()]
        assert {f.channels for f in found} == {896, 4864}
        return {(f.path, f.side): f.indices for f in found if f.indices}

    assert outliers() == {}
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[[17, 500]] *= 40
        model.model.layers[0].post_attention_layernorm.weight[3] *= 30
        # What the norm makes larger, the next layers make smaller: an outlier of their input alone.
        for name in ("gate_proj", "up_proj"):
            getattr(model.model.layers[0].mlp, name).weight[:, 3] /= 30
    assert outliers() == planted


class Live(TorchDispatchMode):
    """The bytes of tensors that are alive at once, at most, among those made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and not any(tensor is a for a in tree_leaves(args)):
                size = tensor.numel() * tensor.element_size()
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(tensor, self._gone, size)
        return out

    def _gone(self, size: int) -> None:
        self.now -= size


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    model = make("llama")

    def used(batches: int) -> tuple[int, int]:
        with torch.no_grad(), Live() as live, ChannelObserver(model, sides=("input", "output"), stream=LAYERS):
            for i in range(batches):
                ids = torch.randint(3, 120, (2, 64), generator=torch.Generator().manual_seed(i))
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
        gc.collect()
        return live.peak, live.now

    few, many = used(4), used(40)
    assert many[0] <= few[0] * 1.02
    assert many[1] == few[1]

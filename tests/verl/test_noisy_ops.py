"""The switch and its settings: what each call does, what it leaves as it is, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack

from cases import batch, make
from noisescope.core.errors import BadInputError, NoisescopeError
from noisescope.verl import noisy_ops

A = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
B = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
PRODUCTS = {"linear", "matmul", "bmm"}


class Stack(nn.Module):
    """Three layers and a head, with hooks of the user's own for the asking."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.SiLU()) for _ in range(3))
            self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def forward_counts(table: dict[Any, dict[str, int]]) -> dict[Any, int]:
    return {key: count["forward"] for key, count in table.items()}


def by_operator() -> dict[str, int]:
    return forward_counts(noisy_ops.get_operator_injection_stats())


def by_layer() -> dict[int | str, int]:
    return forward_counts(noisy_ops.get_layer_injection_stats())


def relative(noisy: Tensor, clean: Tensor) -> float:
    return float((noisy - clean).norm() / clean.norm())


def in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def state_of(model: nn.Module) -> list[object]:
    """All that an injection could leave behind on a model or in the process."""
    return [
        [(sorted(m.__dict__), *map(list, (m._forward_hooks, m._forward_pre_hooks))) for m in model.modules()],
        [list(m._forward_hooks_always_called) for m in model.modules()],
        list(torch_module._global_forward_pre_hooks),
        list(torch_module._global_forward_hooks),
        _get_current_function_mode_stack(),
        torch.matmul,
        torch.nn.functional.linear,
    ]


def hooked(model: nn.Module) -> list[str]:
    """Modules that can run and would run a hook."""
    modules = [(name, m) for name, m in model.named_modules() if not isinstance(m, nn.ModuleList)]
    return [name for name, m in modules if m._forward_hooks or m._forward_pre_hooks]


# ---- on and off


def test_the_defaults_are_five_percent_in_the_three_products() -> None:
    noisy_ops.enable_noisy_ops()
    stats = noisy_ops.get_injection_stats()
    assert (stats["enabled"], stats["error_scale"], stats["error_type"]) == (True, 0.05, "relative_gaussian")
    assert noisy_ops.get_noise_phases() == {"forward_enabled": True, "backward_enabled": True}
    assert noisy_ops.get_selective_layers() is None
    assert noisy_ops.get_selective_operators() is None
    torch.softmax(torch.bmm(A[None], (A @ B)[None]), -1)
    torch.nn.functional.linear(A, B)
    assert by_operator() == {"matmul": 1, "bmm": 1, "linear": 1}


def test_all_ops_mode_takes_every_operator() -> None:
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    make("llama")(**batch())
    make("gpt2")(**batch())
    assert by_operator() == {
        "linear": 24, "matmul": 8, "softmax": 4, "silu": 2, "gelu": 2, "rms_norm": 5, "layer_norm": 5
    }  # fmt: skip


def test_enabling_again_only_changes_settings() -> None:
    model = Stack()
    noisy_ops.enable_noisy_ops(0.05)
    model(A)
    once = state_of(model)
    noisy_ops.enable_noisy_ops(0.2, "absolute_gaussian", all_ops_mode=True)
    assert state_of(model) == once
    noisy_ops.reset_injection_stats()
    model(A)
    assert by_operator() == {"linear": 4, "silu": 3}
    stats = noisy_ops.get_injection_stats()
    assert (stats["error_scale"], stats["error_type"]) == (0.2, "absolute_gaussian")
    noisy_ops.disable_noisy_ops()
    assert not _get_current_function_mode_stack()


def test_disabling_returns_the_statistics_and_they_stay() -> None:
    noisy_ops.enable_noisy_ops(0.1)
    Stack()(A).sum().backward()
    stats = noisy_ops.disable_noisy_ops()
    assert (stats["enabled"], stats["total_forward"], stats["total_backward"]) == (False, 4, 4)
    assert stats == noisy_ops.get_injection_stats() == noisy_ops.disable_noisy_ops()
    Stack()(A)
    assert noisy_ops.get_injection_stats() == stats


@pytest.mark.parametrize("registered", [True, False])
def test_disabling_leaves_nothing_behind(registered: bool) -> None:
    models = [make("llama", "sdpa"), make("gpt2"), Stack()]
    before = [state_of(model) for model in models]
    clean = [models[0](**batch()).logits, models[1](**batch()).logits, models[2](A)]
    for model in models if registered else ():
        noisy_ops.register_layer_hooks(model)
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    noisy = [models[0](**batch()).logits, models[1](**batch()).logits, models[2](A)]
    noisy_ops.disable_noisy_ops()
    assert [state_of(model) for model in models] == before
    after = [models[0](**batch()).logits, models[1](**batch()).logits, models[2](A)]
    assert all(torch.equal(a, b) for a, b in zip(clean, after, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(clean, noisy, strict=True))


def test_a_context_gives_back_what_held_before_it_after_an_exception_too() -> None:
    noisy_ops.enable_noisy_ops(0.01)
    noisy_ops.set_selective_layers([1])

    def fail_inside() -> None:
        with noisy_ops.noisy_ops_context(0.3, all_ops_mode=True):
            noisy_ops.set_selective_layers([0])
            noisy_ops.set_noise_phases(backward=False)
            noisy_ops.disable_noisy_ops()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    stats = noisy_ops.get_injection_stats()
    assert (stats["enabled"], stats["error_scale"], stats["backward_enabled"]) == (True, 0.01, True)
    assert noisy_ops.get_selective_layers() == [1]
    noisy_ops.disable_noisy_ops()
    with pytest.raises(ZeroDivisionError), noisy_ops.noisy_ops_context():
        raise ZeroDivisionError
    assert not noisy_ops.get_injection_stats()["enabled"]
    assert not _get_current_function_mode_stack()


def test_an_exception_inside_a_layer_does_not_shift_later_calls() -> None:
    model = Stack()
    noisy_ops.enable_noisy_ops()
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 5))
    assert noisy_ops.get_current_layer() is None
    noisy_ops.reset_injection_stats()
    model(A)
    assert by_layer() == {0: 1, 1: 1, 2: 1, "unknown": 1}


def test_switching_off_in_another_thread_and_on_again_injects_once() -> None:
    noisy_ops.enable_noisy_ops()
    in_a_thread(noisy_ops.disable_noisy_ops)
    clean = A @ B
    assert by_operator() == {}
    noisy_ops.enable_noisy_ops()
    assert not torch.equal(A @ B, clean)
    assert by_operator() == {"matmul": 1}
    noisy_ops.disable_noisy_ops()
    assert not _get_current_function_mode_stack()


# ---- what is selected


@pytest.mark.parametrize("setter", [noisy_ops.set_selective_operators, noisy_ops.set_selective_ops])
def test_a_list_of_operators_wins_over_the_mode_and_none_gives_it_back(setter: Callable[..., None]) -> None:
    model = make("llama")
    noisy_ops.enable_noisy_ops()
    for chosen, expected in [
        (["softmax", "silu"], {"softmax": 2, "silu": 2}),
        (["layernorm"], {"rms_norm": 5}),
        ("softmax", {"softmax": 2}),
        ([], {}),
        (None, {"linear": 15, "matmul": 4}),
    ]:
        setter(chosen)
        noisy_ops.reset_operator_injection_stats()
        model(**batch())
        assert by_operator() == expected
    setter(["sdpa"])
    assert noisy_ops.get_selective_operators() == ["attention"]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([1], {1: 1}),
        (range(2), {0: 1, 1: 1}),
        ([], {}),
        (None, {0: 1, 1: 1, 2: 1, "unknown": 1}),
        # More layers than the model has: it may be that another model has them.
        ([2, 40], {2: 1}),
    ],
)
def test_layers_are_all_some_or_none(layers: Any, expected: dict[int | str, int]) -> None:
    noisy_ops.set_selective_layers(layers)
    assert noisy_ops.get_selective_layers() == (None if layers is None else list(layers))
    noisy_ops.enable_noisy_ops()
    Stack()(A)
    assert by_layer() == expected


@pytest.mark.parametrize(
    ("forward", "backward", "expected"), [(True, False, (4, 0)), (False, True, (0, 4)), (False, False, (0, 0))]
)
def test_phases_are_switched_one_by_one_and_survive_disabling(
    forward: bool, backward: bool, expected: tuple[int, int]
) -> None:
    noisy_ops.set_noise_phases(forward=forward, backward=backward)
    for _ in range(2):
        noisy_ops.enable_noisy_ops()
        noisy_ops.reset_injection_stats()
        Stack()(A).sum().backward()
        stats = noisy_ops.disable_noisy_ops()
        assert (stats["total_forward"], stats["total_backward"]) == expected
        assert noisy_ops.get_noise_phases() == {"forward_enabled": forward, "backward_enabled": backward}


def test_a_change_of_selection_holds_from_the_next_call_on() -> None:
    model = Stack()
    noisy_ops.enable_noisy_ops()
    for index in range(3):
        noisy_ops.set_selective_layers([index])
        noisy_ops.reset_layer_injection_stats()
        model(A)
        assert by_layer() == {index: 1}


# ---- scales


def test_scales_of_operators_multiply_the_base_scale() -> None:
    noisy_ops.set_operator_noise_scales({"matmul": 2.0, "layernorm": 0.5})
    noisy_ops.enable_noisy_ops(0.05, all_ops_mode=True)
    x = torch.ones(100, 100) / 100
    assert relative(x @ x, x / 1.0) == pytest.approx(0.1, rel=0.05)
    assert relative(torch.nn.functional.linear(x, x), x) == pytest.approx(0.05, rel=0.05)
    y = torch.ones(100, 100)
    y[:, ::2] = -1
    assert relative(torch.nn.functional.rms_norm(y, (100,), eps=0.0), y) == pytest.approx(0.025, rel=0.05)
    noisy_ops.set_operator_noise_scales({})
    assert relative(x @ x, x) == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("absolute", [False, True])
def test_scales_of_layers_multiply_the_base_scale_or_stand_in_its_place(absolute: bool) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256, bias=False)) for _ in range(3)))
    seen: dict[int, float] = {}

    def compare(linear: nn.Linear, args: tuple[Tensor], out: Tensor) -> None:
        clean = (args[0].double() @ linear.weight.double().T).float()
        seen[int(noisy_ops.get_current_layer() or 0)] = relative(out, clean)

    for layer in model:
        layer[0].register_forward_hook(compare)
    factors = {0: 0.5, 1: 2.0}
    noisy_ops.set_per_layer_scales(factors, absolute=absolute)
    noisy_ops.set_operator_noise_scales({"linear": 2.0})
    # The comparison multiplies as well, and has to stay clean.
    noisy_ops.set_selective_operators(["linear"])
    noisy_ops.enable_noisy_ops(0.1)
    with torch.no_grad():
        model(torch.ones(64, 256))
    base = {0: 0.5, 1: 2.0, 2: 0.1} if absolute else {0: 0.05, 1: 0.2, 2: 0.1}
    assert seen == {layer: pytest.approx(2 * scale, rel=0.1) for layer, scale in base.items()}


def test_scales_of_layers_and_of_operators_do_not_remove_each_other() -> None:
    noisy_ops.set_per_layer_scales({0: 3.0})
    noisy_ops.set_operator_noise_scales({"silu": 0.0})
    noisy_ops.set_per_layer_scales({"1": 0.0, 2: 0.0})
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    model = Stack()
    model(A)
    scaling = noisy_ops.BOARD.settings.scaling
    assert scaling.layers == ((1, 0.0), (2, 0.0))
    assert scaling.operators == (("silu", 0.0),)
    # Reached everywhere, and changed where the scale is not zero: in the first linear layer and in the head.
    stats = noisy_ops.get_injection_stats()
    assert stats["total_forward"] == 7
    assert stats["elements_compared"] == 2 * A.numel()
    noisy_ops.set_per_layer_scales(None)
    noisy_ops.set_operator_noise_scales(None)
    assert noisy_ops.BOARD.settings.scaling == type(scaling)()


# ---- seeds


def test_the_same_seed_over_the_same_calls_gives_the_same_noise() -> None:
    def three(seed: int) -> list[Tensor]:
        noisy_ops.set_noise_seed(seed)
        model = Stack()
        with torch.no_grad(), noisy_ops.noisy_ops_context():
            return [model(A) for _ in range(3)]

    first, same, other = three(3), three(3), three(4)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_a_product_outside_every_module_meets_other_noise_in_each_step() -> None:
    model = Stack()
    noisy_ops.enable_noisy_ops()
    outs = []
    for _ in range(3):
        model(A)
        outs.append(A @ B)
    assert not torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[1], outs[2])


# ---- models


def test_models_that_nobody_registered_are_found_on_their_first_call() -> None:
    noisy_ops.set_selective_layers([1])
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    for name, calls in (("llama", 13), ("gpt2", 10), ("bert", 12)):
        noisy_ops.reset_injection_stats()
        make(name)(**batch())
        assert by_layer() == {1: calls}, name


def test_the_first_call_of_a_model_is_noisy_like_the_second() -> None:
    """The norm and the activation here are written out by hand, and the norm is called on its own."""
    norm = make("llama").model.norm
    activation = make("gpt2").transformer.h[0].mlp.act
    x = A.repeat(1, 4).requires_grad_()
    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    for calls in (1, 2):
        norm(x).sum().backward()
        activation(x).sum().backward()
        expected = {"forward": calls, "backward": calls}
        assert noisy_ops.get_operator_injection_stats() == {"rms_norm": expected, "gelu": expected}


def test_learning_a_model_is_not_counted() -> None:
    class Weighs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x, -1)

    noisy_ops.enable_noisy_ops(all_ops_mode=True)
    Weighs()(A)
    assert by_operator() == {"softmax": 1}


def test_a_part_that_ran_before_its_model_still_belongs_to_its_layer() -> None:
    model = Stack()
    noisy_ops.enable_noisy_ops()
    model.layers[2](A)
    assert by_layer() == {"unknown": 1}
    noisy_ops.reset_injection_stats()
    model(A)
    model.layers[2](A)
    assert by_layer() == {0: 1, 1: 1, 2: 2, "unknown": 1}


def test_a_wrapper_around_a_known_model_changes_no_layer() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    model = Stack()
    noisy_ops.register_layer_hooks(model)
    noisy_ops.enable_noisy_ops()
    Wrapper(model)(A)
    assert by_layer() == {0: 1, 1: 1, 2: 1, "unknown": 1}


def test_models_met_by_two_threads_at_once_are_each_learned_once() -> None:
    noisy_ops.enable_noisy_ops()
    for _ in range(20):
        models = [Stack(), Stack()]
        # Two threads in one model and two in another.
        gate = threading.Barrier(4)

        def work(model: nn.Module, gate: threading.Barrier = gate) -> None:
            gate.wait()
            model(A)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, models * 2))
    assert by_layer() == {0: 80, 1: 80, 2: 80, "unknown": 80}


def test_products_in_the_users_own_code_belong_to_no_layer() -> None:
    noisy_ops.enable_noisy_ops()
    clean = in_a_thread(lambda: A @ B)
    assert not torch.equal(A @ B, clean)
    assert by_layer() == {"unknown": 1}
    noisy_ops.set_selective_layers([0])
    assert torch.equal(A @ B, clean)


@pytest.mark.parametrize("registered", [True, False])
def test_the_current_layer_is_known_to_hooks_inside_it(registered: bool) -> None:
    model, seen = Stack(), []
    if registered:
        noisy_ops.register_layer_hooks(model)
    note = lambda *_: seen.append(noisy_ops.get_current_layer())  # noqa: E731
    model.layers[0].register_forward_hook(note)
    model.layers[1][0].register_forward_pre_hook(note)
    noisy_ops.enable_noisy_ops()
    # Registered after the noise was switched on, on a layer and inside one.
    model.layers[1].register_forward_hook(note)
    model.layers[2][1].register_forward_hook(note)
    model.head.register_forward_hook(note)
    for _ in range(2):
        seen.clear()
        model(A)
        assert seen == [0, 1, 1, 2, None]
    assert noisy_ops.get_current_layer() is None


def test_a_copy_made_while_noise_is_on_is_a_model_of_its_own() -> None:
    model = Stack()
    noisy_ops.enable_noisy_ops()
    model(A)
    idle, used = copy.deepcopy(model), copy.deepcopy(model)
    noisy_ops.reset_injection_stats()
    used(A)
    assert by_layer() == {0: 1, 1: 1, 2: 1, "unknown": 1}
    noisy_ops.disable_noisy_ops()
    assert hooked(used) == []
    # At the latest when it runs, a copy drops what it was born with.
    assert torch.equal(idle(A), model(A))
    assert hooked(idle) == []


def test_a_model_can_be_pickled_while_noise_is_on() -> None:
    model = Stack()
    clean = model(A)
    noisy_ops.enable_noisy_ops()
    model(A)
    written = pickle.dumps(model)
    noisy_ops.disable_noisy_ops()
    read = pickle.loads(written)
    assert torch.equal(read(A), clean)
    assert hooked(read) == []


# torch warns of its own way to trace an autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_model_compiled_in_place_is_followed_once_it_is_registered() -> None:
    # Such a model has no eager call in front of it on which it could be learned.
    model = Stack()
    noisy_ops.register_layer_hooks(model)
    model.compile(fullgraph=True, backend="eager")
    noisy_ops.enable_noisy_ops()
    model(A)
    assert by_layer() == {0: 1, 1: 1, 2: 1, "unknown": 1}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*global hooks:UserWarning")
def test_a_compiled_model_that_nobody_registered_is_found() -> None:
    compiled = torch.compile(Stack(), fullgraph=True, backend="eager")
    noisy_ops.enable_noisy_ops()
    for calls in (1, 2):
        compiled(A)
        assert by_layer() == {0: calls, 1: calls, 2: calls, "unknown": calls}


# ---- statistics


@pytest.mark.parametrize(
    "reset",
    [
        noisy_ops.reset_injection_stats,
        noisy_ops.reset_layer_injection_stats,
        noisy_ops.reset_operator_injection_stats,
    ],
)
def test_every_reset_counts_from_zero(reset: Callable[[], None]) -> None:
    noisy_ops.enable_noisy_ops()
    Stack()(A).sum().backward()
    assert noisy_ops.get_layer_injection_stats()[0] == {"forward": 1, "backward": 1}
    reset()
    stats = noisy_ops.get_injection_stats()
    assert {stats[name] for name in ("total_forward", "total_backward", "elements", "elements_changed")} == {0}
    assert noisy_ops.get_layer_injection_stats() == noisy_ops.get_operator_injection_stats() == {}
    assert stats["enabled"]


def test_the_summary_names_what_was_selected_and_never_ran(capsys: pytest.CaptureFixture[str]) -> None:
    noisy_ops.set_selective_operators(["linear", "softmax"])
    noisy_ops.enable_noisy_ops()
    noisy_ops.print_injection_summary()
    assert "nothing was injected" in capsys.readouterr().out
    Stack()(A)
    noisy_ops.print_injection_summary()
    printed = capsys.readouterr().out
    assert printed.startswith("noisy operators on: relative_gaussian of scale 0.05")
    assert "nothing was injected" not in printed
    (silent,) = [line.split()[0] for line in printed.splitlines() if "never reached" in line]
    assert silent == "softmax"


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noisy_ops.set_selective_operators(["linear", "sofmax"]), "Did you mean 'softmax'"),
        (lambda: noisy_ops.set_selective_ops(["layernrom"]), "Did you mean 'layernorm'"),
        (lambda: noisy_ops.set_selective_operators(5), "expected a list"),
        (lambda: noisy_ops.enable_noisy_ops(0.3, "relative_gausian"), "Did you mean 'relative_gaussian'"),
        (lambda: noisy_ops.enable_noisy_ops(-0.1), "scale -0.1"),
        (lambda: noisy_ops.enable_noisy_ops(float("nan")), "scale nan"),
        (lambda: noisy_ops.enable_noisy_ops("0.05"), "scale '0.05'"),
        (lambda: noisy_ops.noisy_ops_context(0.1, "gauss").__enter__(), "unknown noise kind"),
        (lambda: noisy_ops.set_selective_layers([0, -1]), "layer -1"),
        (lambda: noisy_ops.set_selective_layers(["a"]), "layer 'a'"),
        (lambda: noisy_ops.set_selective_layers([True]), "layer True"),
        (lambda: noisy_ops.set_selective_layers(3), "expected a list"),
        (lambda: noisy_ops.set_selective_layers("12"), "expected a list"),
        (lambda: noisy_ops.set_operator_noise_scales({"silu": 2.0, "linaer": 2.0}), "Did you mean 'linear'"),
        (lambda: noisy_ops.set_operator_noise_scales({"linear": -1.0}), "'linear'"),
        (lambda: noisy_ops.set_operator_noise_scales({5: 1.0}), "unknown operator 5"),
        (lambda: noisy_ops.set_operator_noise_scales(["linear"]), "expected a dict"),
        (lambda: noisy_ops.set_per_layer_scales({0: 1.0, 1: float("inf")}), "scale inf of 1"),
        (lambda: noisy_ops.set_per_layer_scales({0: "2"}), "scale '2' of 0"),
        (lambda: noisy_ops.set_per_layer_scales({"first": 1.0}), "layer 'first'"),
        (lambda: noisy_ops.set_per_layer_scales({-1: 1.0}), "layer -1"),
        (lambda: noisy_ops.set_noise_seed(0.5), "seed 0.5"),
        (lambda: noisy_ops.register_layer_hooks("model"), "expected a torch.nn.Module"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    call: Callable[[], None], message: str, enabled: bool
) -> None:
    noisy_ops.set_selective_layers([2])
    noisy_ops.set_selective_operators(["linear"])
    if enabled:
        noisy_ops.enable_noisy_ops(0.1)
    before = (noisy_ops.BOARD.settings, noisy_ops.get_injection_stats(), _get_current_function_mode_stack())
    with pytest.raises(BadInputError, match=message) as caught:
        call()
    assert isinstance(caught.value, NoisescopeError)
    assert (noisy_ops.BOARD.settings, noisy_ops.get_injection_stats(), _get_current_function_mode_stack()) == before

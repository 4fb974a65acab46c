"""Records say what they hold, survive a round trip through JSON, and are named by their content."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisescope.core.codec import decode, encode, key_of
from noisescope.core.errors import BadInputError
from noisescope.core.layout import Layout
from noisescope.core.records import (
    Corruption,
    Finding,
    Injection,
    Reading,
    Scaling,
    Trial,
    fault,
    noise,
    operator_names,
)
from noisescope.core.vocabulary import FAULT_KINDS, KINDS, NOISE_KINDS, OPERATORS

EXAMPLES = [
    noise(),
    fault("stuck_at_zero", channels=[3, 1]),
    Injection.of(noise("int8"), layers=[None, 3], operators=["layernorm"], phases=["backward"], seed=9),
    Injection(noise(), scaling=Scaling((("linear", 2.0),), ((0, 0.1),), True)),
    Trial((Injection.of(fault("dead_zone")),), "demo", "accuracy", 10, 20),
    Reading(Trial((), "demo", "nll"), (1.0, 2.5)),
    Reading(Trial((), "demo", "nll"), error="out of memory"),
    Finding("layer 3 is fragile", "high", (("degradation", 0.2),), ("abc",), False),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_survives_a_round_trip(record: object) -> None:
    again = decode(type(record), encode(record))
    assert again == record
    assert key_of(again) == key_of(record)


def test_records_are_named_by_their_content() -> None:
    trial = Trial((Injection.of(noise(), seed=1),), "demo", "nll")
    assert key_of(trial) == key_of(Trial((Injection.of(noise(), seed=1),), "demo", "nll"))
    assert key_of(trial) != key_of(dataclasses.replace(trial, injections=(Injection.of(noise(), seed=2),)))


@given(
    kind=st.sampled_from(NOISE_KINDS),
    scale=st.floats(0, 1e6),
    seed=st.integers(),
    layers=st.none() | st.lists(st.none() | st.integers(0, 100), min_size=1),
)
def test_any_injection_survives_a_round_trip(kind: str, scale: float, seed: int, layers: list[int | None]) -> None:
    injection = Injection.of(noise(kind, scale), layers=layers, seed=seed)
    assert decode(Injection, encode(injection)) == injection


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected the fields of Corruption"),
        ('{"kind": "int8"}', "Corruption lacks hardware, params, strength"),
        ('{"kind": "int8", "strength": 1, "params": [], "hardware": false, "x": 1}', "has no field x"),
        ('{"kind": 8, "strength": 1, "params": [], "hardware": false}', "8: expected str"),
        ('{"kind": "int8", "strength": "1", "params": [], "hardware": false}', "'1': expected float"),
        ('{"kind": "int8", "strength": 1, "params": {}, "hardware": false}', "expected a list"),
        ('{"kind": "int8", "strength": 1, "params": [["a"]], "hardware": false}', "expected a list of 2"),
        ('{"kind": "nonsense", "strength": 1, "params": [], "hardware": false}', "unknown noise kind"),
        ('{"kind": "int8", "strength": 1, "params": [], "hardware": 0}', "0: expected bool"),
    ],
)
def test_what_is_no_record_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        decode(Corruption, text)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A record with a closed choice."""

    verdict: Literal["fault", "undecided", 1]


@pytest.mark.parametrize("verdict", ["fault", "undecided", 1])
def test_a_closed_choice_is_read_back(verdict: Literal["fault", "undecided", 1]) -> None:
    assert decode(Answer, encode(Answer(verdict))) == Answer(verdict)


@pytest.mark.parametrize("text", ['{"verdict": "guilty"}', '{"verdict": true}', '{"verdict": null}'])
def test_what_is_no_choice_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(BadInputError, match="expected one of 'fault', 'undecided', 1"):
        decode(Answer, text)


def test_aliases_and_order_of_operators() -> None:
    assert operator_names(None) is None
    assert operator_names("sdpa") == ("attention",)
    assert operator_names(["rms_norm", "layernorm", "linear"]) == ("linear", "layer_norm", "rms_norm")


def test_all_operators_means_all_elementary_ones() -> None:
    everything = Injection.of(noise())
    assert [name for name in OPERATORS if not everything.takes(0, name)] == ["attention"]
    assert Injection.of(noise(), operators="attention").takes(None, "attention")
    lut = Injection.of(fault("exp_lut"))
    assert [name for name in OPERATORS if lut.takes(0, name)] == ["softmax"]


@pytest.mark.parametrize(
    ("scaling", "layer", "operator", "expected"),
    [
        (Scaling(), 3, "linear", 0.1),
        (Scaling(operators=(("linear", 2.0),)), 3, "linear", 0.2),
        (Scaling(operators=(("linear", 2.0),)), 3, "matmul", 0.1),
        (Scaling(layers=((3, 0.5),)), 3, "linear", 0.05),
        (Scaling(layers=((3, 0.5),)), 4, "linear", 0.1),
        (Scaling(layers=((3, 0.5),)), None, "linear", 0.1),
        (Scaling(layers=((3, 0.5),), layers_absolute=True), 3, "linear", 0.5),
        (Scaling((("linear", 2.0),), ((3, 0.5),), True), 3, "linear", 1.0),
    ],
)
def test_scales_multiply(scaling: Scaling, layer: int | None, operator: str, expected: float) -> None:
    assert scaling.strength(0.1, layer, operator) == pytest.approx(expected)


def test_parameters_are_filled_in_from_the_vocabulary() -> None:
    assert fault("bit_flip", bit=3).spec_params == {"bit": 3, "rate": 0.01, "channels": None, "fraction": 1.0}
    assert noise("int4").spec_params["granularity"] == "block"


def test_every_kind_is_a_noise_or_a_fault() -> None:
    assert set(NOISE_KINDS) | set(FAULT_KINDS) == set(KINDS)
    assert not set(NOISE_KINDS) & set(FAULT_KINDS)


@pytest.mark.parametrize(
    ("path", "layer", "local"),
    [
        ("model.layers.0.mlp.up", 0, "mlp.up"),
        ("model.layers.1", 1, ""),
        ("model.layers.10.mlp", None, "model.layers.10.mlp"),
        ("lm_head", None, "lm_head"),
        ("", None, ""),
    ],
)
def test_a_path_belongs_to_the_layer_that_holds_it(path: str, layer: int | None, local: str) -> None:
    assert Layout(("model.layers.0", "model.layers.1")).layer_of(path) == (layer, local)


def test_a_field_that_came_later_changes_no_text_and_no_key_until_it_is_used() -> None:
    plain = Injection.of(noise(), layers=[3])
    assert "paths" not in encode(plain) and decode(Injection, encode(plain)) == plain
    placed = dataclasses.replace(plain, paths=("model.layers.3.mlp.down_proj",))
    assert '"paths":["model.layers.3.mlp.down_proj"]' in encode(placed)
    assert decode(Injection, encode(placed)) == placed and key_of(placed) != key_of(plain)


def test_paths_select_their_own_sites_and_without_one_any_site_may_be() -> None:
    placed = dataclasses.replace(Injection.of(noise(), layers=[3]), paths=("a",))
    assert placed.takes(3, "linear", "a") and not placed.takes(3, "linear", "b") and not placed.takes(2, "linear", "a")
    assert placed.takes(3, "linear")

"""The bugs that people make when they port a model, each planted the way it happens: with the model's own code."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers.models.llama.modeling_llama as llama
from torch import Tensor, nn

from cases import make

LAYER = 1


@dataclass(frozen=True)
class Bug:
    """A healthy model and a way to spoil it; `found` are the layer and the operators by which it may be named."""

    family: str
    attention: str
    plant: Callable[[Any], None]
    layer: int | None
    operators: tuple[str, ...]
    path: str
    symptom: str = ""

    def pair(self) -> tuple[nn.Module, nn.Module]:
        """The healthy model and the spoiled one, of the same weights."""
        healthy, spoiled = make(self.family, self.attention), make(self.family, self.attention)
        self.plant(spoiled)
        return healthy, spoiled


def with_globals(module: nn.Module, **names: Any) -> None:
    """Let a module's forward find other functions under the names of its file."""
    whole: Any = type(module).forward
    while hasattr(whole, "__wrapped__"):
        whole = whole.__wrapped__
    other = types.FunctionType(
        whole.__code__, {**whole.__globals__, **names}, whole.__name__, whole.__defaults__, whole.__closure__
    )
    other.__kwdefaults__ = whole.__kwdefaults__
    module.forward = types.MethodType(other, module)


def attention_of(model: Any) -> Any:
    """The attention of the spoiled layer."""
    return model.model.layers[LAYER].self_attn


def wrong_eps(model: Any) -> None:
    model.model.layers[LAYER].input_layernorm.variance_epsilon = 1e-5


def erf_gelu(model: Any) -> None:
    model.transformer.h[LAYER].mlp.act = nn.GELU()


def tables_in_bfloat16(model: Any) -> None:
    right = model.model.rotary_emb.forward

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = right(x.bfloat16(), position_ids)
        return cos.to(x.dtype), sin.to(x.dtype)

    model.model.rotary_emb.forward = forward


def rotated_in_bfloat16(model: Any) -> None:
    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any) -> tuple[Tensor, ...]:
        short = [x.bfloat16() for x in (q, k, cos, sin)]
        return tuple(x.float() for x in llama.apply_rotary_pos_emb(*short))

    with_globals(attention_of(model), apply_rotary_pos_emb=turn)


def wrong_theta(model: Any) -> None:
    size = 8
    model.model.rotary_emb.inv_freq = 1.0 / 500000.0 ** (torch.arange(0, size, 2).float() / size)


def interleaved(model: Any) -> None:
    def half(x: Tensor) -> Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any) -> tuple[Tensor, ...]:
        cos, sin = (x[..., : x.shape[-1] // 2].repeat_interleave(2, -1)[:, None] for x in (cos, sin))
        return q * cos + half(q) * sin, k * cos + half(k) * sin

    with_globals(attention_of(model), apply_rotary_pos_emb=turn)


def no_scale(model: Any) -> None:
    attention_of(model).scaling = 1.0


def repeated_heads(x: Tensor, groups: int) -> Tensor:
    """Heads 0 1 0 1 where it should be 0 0 1 1."""
    return x.repeat(1, groups, 1, 1)


def wrong_groups(model: Any) -> None:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        k, v = (repeated_heads(x, module.num_key_value_groups) for x in (k, v))
        weights = q @ k.transpose(2, 3) * scaling + (0 if mask is None else mask)
        weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights

    with_globals(attention_of(model), eager_attention_forward=attend)


def wrong_groups_fused(model: Any) -> None:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        k, v = (repeated_heads(x, module.num_key_value_groups) for x in (k, v))
        causal = mask is None
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    with_globals(attention_of(model), ALL_ATTENTION_FUNCTIONS=_Fixed(attend))


class _Fixed:
    """A registry of attention functions that has one."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def get_interface(self, *_: Any) -> Any:
        return self._function


def sees_the_next(model: Any) -> None:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **how: Any) -> Any:
        length = q.shape[2]
        least = torch.finfo(q.dtype).min
        ahead = torch.full((length, length), least).triu(2)[None, None]
        return llama.eager_attention_forward(module, q, k, v, ahead, scaling, **how)

    with_globals(attention_of(model), eager_attention_forward=attend)


def misses_itself(model: Any) -> None:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        length = q.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool).tril(-1)
        seen[0, 0] = True
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scaling)
        return out.transpose(1, 2).contiguous(), None

    with_globals(attention_of(model), ALL_ATTENTION_FUNCTIONS=_Fixed(attend))


def short_softmax(model: Any) -> None:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        scores = torch.matmul(q, k.transpose(2, 3)) * scaling + (0 if mask is None else mask)
        weights = torch.softmax(scores, dim=-1, dtype=torch.bfloat16).to(q.dtype)
        return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights

    with_globals(attention_of(model), eager_attention_forward=attend)


def transposed(model: Any) -> None:
    weight = attention_of(model).o_proj.weight
    weight.data = weight.data.T.contiguous()


def stale_shard(model: Any) -> None:
    weight = model.model.layers[LAYER].mlp.down_proj.weight
    weight.data[:16] = torch.randn(16, weight.shape[1], generator=torch.Generator().manual_seed(9)) * 0.02


def residual_behind_the_norm(model: Any) -> None:
    layer = model.model.layers[LAYER]

    def forward(hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Any = None, **how: Any) -> Any:
        x = layer.input_layernorm(hidden_states)
        attended, _ = layer.self_attn(
            hidden_states=x, attention_mask=attention_mask, position_embeddings=position_embeddings, **how
        )
        x = x + attended
        return x + layer.mlp(layer.post_attention_layernorm(x))

    layer.forward = forward


def untied_head(model: Any) -> None:
    generator = torch.Generator().manual_seed(9)
    model.lm_head.weight = nn.Parameter(torch.randn(model.lm_head.weight.shape, generator=generator) * 0.02)


_ATT = f"model.layers.{LAYER}.self_attn"
BUGS: dict[str, Bug] = {
    "norm eps 1e-5 for 1e-6": Bug(
        "llama", "sdpa", wrong_eps, LAYER, ("rms_norm",), f"model.layers.{LAYER}.input_layernorm"
    ),
    "erf GELU for tanh GELU": Bug("gpt2", "sdpa", erf_gelu, LAYER, ("gelu",), f"transformer.h.{LAYER}.mlp.act"),
    "rope tables in bfloat16": Bug("llama", "sdpa", tables_in_bfloat16, None, ("rope",), "model.rotary_emb"),
    "rope applied in bfloat16": Bug("llama", "sdpa", rotated_in_bfloat16, LAYER, ("rope",), _ATT),
    "rope theta": Bug("qwen2", "sdpa", wrong_theta, None, ("rope",), "model.rotary_emb"),
    "rope interleaved": Bug("llama", "eager", interleaved, LAYER, ("rope",), _ATT),
    "no 1/sqrt(d), written out": Bug("llama", "eager", no_scale, LAYER, ("attention",), _ATT, "2.82843 times"),
    "no 1/sqrt(d), fused": Bug("llama", "sdpa", no_scale, LAYER, ("attention",), _ATT),
    "key-value heads grouped wrongly": Bug("qwen2", "eager", wrong_groups, LAYER, ("attention",), _ATT),
    "key-value heads grouped wrongly, fused": Bug(
        "qwen2", "sdpa", wrong_groups_fused, LAYER, ("attention",), _ATT, "another order"
    ),
    "causal mask lets the next token in": Bug(
        "llama", "eager", sees_the_next, LAYER, ("attention",), _ATT, "other tokens are masked"
    ),
    "causal mask hides the token itself, fused": Bug("llama", "sdpa", misses_itself, LAYER, ("attention",), _ATT),
    "softmax in bfloat16": Bug("llama", "eager", short_softmax, LAYER, ("softmax",), _ATT),
    "transposed weight": Bug("llama", "sdpa", transposed, LAYER, ("linear",), f"{_ATT}.o_proj"),
    "stale shard": Bug("llama", "sdpa", stale_shard, LAYER, ("linear",), f"model.layers.{LAYER}.mlp.down_proj"),
    "residual taken behind the norm": Bug(
        "llama",
        "sdpa",
        residual_behind_the_norm,
        LAYER,
        ("residual",),
        f"model.layers.{LAYER}.post_attention_layernorm",
    ),
    "tied head not tied": Bug("gemma", "sdpa", untied_head, None, ("linear",), "lm_head"),
}

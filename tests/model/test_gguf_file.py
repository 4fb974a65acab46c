"""GGUF files, written here tensor by tensor, come back as the dense model and the tokenizer they stand for."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from noisescope.core.errors import LoadError
from noisescope.model.embedded import unpack_gguf
from noisescope.model.load import load

HIDDEN, HEADS, KEY_HEADS, INNER, LAYERS = 64, 4, 2, 96, 2
BYTES = [chr(b) for b in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ"]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama(vocabulary: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config).eval()


def gguf_name(name: str) -> str:
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outside:
        return f"{outside[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a query or key projection in the order that llama.cpp keeps them in for its rotary embedding."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: torch.nn.Module, tokens: list[str], merges: list[str]) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            weight = interleaved(weight, HEADS if "q_proj" in name else KEY_HEADS)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


DIGITS_APART = (["<|end_09|>", *BYTES, "ĊĊ", "ĠĠ"], ["Ċ Ċ", "Ġ Ġ"])
DIGITS_JOINED = (["<|end_09|>", *BYTES, "ĊĊ", "ĠĠ", "12"], ["Ċ Ċ", "Ġ Ġ", "1 2"])


def test_the_dense_model_equals_the_one_that_was_written(tmp_path, capfd):
    model = llama(len(DIGITS_APART[0]))
    loaded = load(str(write_gguf(tmp_path / "tiny.gguf", model, *DIGITS_APART)))
    assert capfd.readouterr() == ("", "")
    expected, seen = model.state_dict(), loaded.model.state_dict()
    assert seen.keys() == expected.keys()
    assert all(seen[name].dtype is torch.float32 and torch.equal(seen[name], expected[name]) for name in expected)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)
    half = load(str(tmp_path / "tiny.gguf"), dtype="bf16")
    assert half.model.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("vocabulary", "spelled"),
    [
        (DIGITS_APART, {"a\n\n12": ["a", "ĊĊ", "1", "2"], "a  1": ["a", "ĠĠ", "1"], "3.14": ["3", ".", "1", "4"]}),
        (DIGITS_JOINED, {"a\n\n12": ["a", "Ċ", "Ċ", "12"], "a  1": ["a", "Ġ", "Ġ", "1"], "3.14": ["3", ".", "1", "4"]}),
    ],
    ids=["learned with digits apart", "learned with digits joined"],
)
def test_numbers_are_split_as_the_vocabulary_was_learned(tmp_path, vocabulary, spelled):
    tokenizer = load(str(write_gguf(tmp_path / "tiny.gguf", llama(len(vocabulary[0])), *vocabulary))).tokenizer
    assert {text: tokenizer.tokenize(text) for text in spelled} == spelled
    assert tokenizer.model_max_length == 128


def test_a_file_that_is_not_gguf_or_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"version https://git-lfs")
    with pytest.raises(LoadError, match="begins with b'vers', expected b'GGUF'"):
        load(str(path))
    write_gguf(path, llama(len(DIGITS_APART[0])), *DIGITS_APART)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(LoadError, match=r"tiny.gguf: cannot be read \(.*\); expected a whole"):
        load(str(path))


def test_the_folder_made_of_a_file_holds_the_same_weights_and_tokenizer(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", llama(len(DIGITS_APART[0])), *DIGITS_APART)
    unpack_gguf(tmp_path, tmp_path / "folder")
    packed, unpacked = load(str(path)), load(str(tmp_path / "folder"))
    expected = packed.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in unpacked.model.state_dict().items())
    assert unpacked.tokenizer.tokenize("a\n\n12") == packed.tokenizer.tokenize("a\n\n12") == ["a", "ĊĊ", "1", "2"]
    assert unpacked.tokenizer.model_max_length == 128

"""Loading: every kind of source gives the same weights, and every failure is one line that says what to do."""

import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from noisescope.core.errors import BadInputError, LoadError
from noisescope.model.load import Loaded, load

IDS = torch.arange(12).reshape(2, 6)


def write_llama(folder: Path, layers: int = 2, dtype: torch.dtype = torch.float32) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("original") / "llama")


@pytest.fixture
def llama(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(original, tmp_path / "llama"))


def logits(loaded: Loaded) -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(IDS).logits


def refused(*args: object, **options: object) -> str:
    with pytest.raises((LoadError, BadInputError)) as caught:
        load(*args, **options)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_a_folder_is_loaded_in_eval_mode_with_nothing_printed(llama, capfd):
    loaded = load(str(llama))
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert not any(module.training for module in loaded.model.modules())
    assert (loaded.tokenizer, loaded.source) == (None, str(llama))
    assert capfd.readouterr() == ("", "")


def test_the_tokenizer_beside_the_weights_is_loaded(llama):
    write_tokenizer(llama)
    assert load(str(llama)).tokenizer("a")["input_ids"] == [1]


def test_the_settings_of_transformers_are_as_they_were_after_a_load(llama):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(str(llama))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, torch.bfloat16), ("float32", torch.float32), ("fp16", torch.float16)]
)
def test_the_dtype_is_the_one_of_the_weights_unless_asked(tmp_path, asked, expected):
    folder = write_llama(tmp_path / "half", dtype=torch.bfloat16)
    assert {p.dtype for p in load(str(folder), dtype=asked).model.parameters()} == {expected}


def test_the_attention_that_was_asked_for_is_used(llama):
    for attention in ("eager", "sdpa"):
        assert load(str(llama), attention=attention).model.config._attn_implementation == attention


def write_state(folder: Path, name: str, state: object) -> Path:
    path = folder / name
    save_file(state, path) if name.endswith(".safetensors") else torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("weights.safetensors", lambda state: state),
        ("weights.pt", lambda state: state),
        ("step-9.ckpt", lambda state: {"step": 9, "optimizer": {"lr": 0.1}, "state_dict": state}),
        ("model.pth", lambda state: {"model": {f"module._orig_mod.{k}": v for k, v in state.items()}}),
    ],
    ids=["safetensors", "bare", "in a training state", "wrapped by data parallel and compile"],
)
def test_a_checkpoint_with_its_config_equals_the_folder(llama, tmp_path, name, wrap):
    write_tokenizer(llama)
    whole = load(str(llama))
    path = write_state(tmp_path, name, wrap(load_file(llama / "model.safetensors")))
    for config in (llama, llama / "config.json"):
        loaded = load(str(path), config_from=str(config))
        assert torch.equal(logits(loaded), logits(whole))
        assert loaded.fingerprint == whole.fingerprint
        assert loaded.tokenizer("a")["input_ids"] == [1]


def test_a_checkpoint_keeps_its_own_dtype_whatever_the_config_says(llama, tmp_path):
    state = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(llama / "model.safetensors").items()}
    loaded = load(str(write_state(tmp_path, "half.pt", state)), config_from=str(llama))
    assert loaded.model.dtype is torch.bfloat16


def test_a_checkpoint_in_the_old_file_format_is_read(llama, tmp_path):
    path = tmp_path / "old.pt"
    torch.save(load_file(llama / "model.safetensors"), path, _use_new_zipfile_serialization=False)
    assert torch.equal(logits(load(str(path), config_from=str(llama))), logits(load(str(llama))))


def test_the_fingerprint_follows_the_content_and_not_the_place(llama, tmp_path):
    first = load(str(llama)).fingerprint
    moved = Path(shutil.copytree(llama, tmp_path / "elsewhere"))
    assert load(str(moved)).fingerprint == first
    assert load(str(moved), dtype="bf16").fingerprint != first
    weights = load_file(moved / "model.safetensors")
    weights["lm_head.weight"][0, 0] += 1e-3
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    assert load(str(moved)).fingerprint != first
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    assert load(str(llama)).fingerprint != first


def test_a_config_without_architectures_gives_the_causal_model(llama):
    config = json.loads((llama / "config.json").read_text())
    del config["architectures"]
    (llama / "config.json").write_text(json.dumps(config))
    assert type(load(str(llama)).model).__name__ == "LlamaForCausalLM"


def test_weights_that_do_not_fit_the_config_are_listed(llama, tmp_path):
    state = load_file(llama / "model.safetensors")
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        del state[f"model.layers.1.self_attn.{part}.weight"]
    state["model.norm.weight"] = torch.ones(3)
    state["model.layers.7.stray"] = torch.ones(3)
    said = refused(str(write_state(tmp_path, "w.pt", state)), config_from=str(llama))
    assert "4 weights missing (model.layers.1.self_attn.k_proj.weight, " in said
    assert ", and 1 more)" in said
    assert "1 of another shape (model.norm.weight: [3] in place of [32])" in said
    assert "1 that the model does not have (model.layers.7.stray)" in said


def test_a_folder_with_a_weight_missing_is_refused_and_not_filled_with_noise(llama):
    state = load_file(llama / "model.safetensors")
    del state["model.layers.0.mlp.up_proj.weight"]
    save_file(state, llama / "model.safetensors", metadata={"format": "pt"})
    assert "1 weights missing (model.layers.0.mlp.up_proj.weight)" in refused(str(llama))


class RunsCode:
    def __reduce__(self):
        return os.system, ("echo pwned > /dev/stderr",)


@pytest.mark.parametrize("name", ["evil.pt", "folder"])
def test_a_pickle_that_would_run_code_is_refused_without_running_it(llama, tmp_path, name, capfd):
    if name == "folder":
        (llama / "model.safetensors").unlink()
        torch.save({"lm_head.weight": RunsCode()}, llama / "pytorch_model.bin")
        said = refused(str(llama))
    else:
        torch.save({"lm_head.weight": RunsCode()}, tmp_path / name)
        said = refused(str(tmp_path / name), config_from=str(llama))
    assert "a pickle that would run code when read (posix.system)" in said
    assert "pwned" not in "".join(capfd.readouterr())


def write_remote_code(folder: Path) -> Path:
    """A model whose own files hold its class, and tell when they were run."""
    folder.mkdir()
    (folder / "own.py").write_text(
        "import pathlib\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"pathlib.Path({str(folder / 'ran')!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    write_llama(folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "own", "architectures": ["OwnModel"], "auto_map": own})
    )
    return folder


def test_remote_code_runs_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = write_remote_code(tmp_path / "brings_code")
    assert "--trust-remote-code" in refused(str(folder))
    assert not (folder / "ran").exists()
    assert type(load(str(folder), trust_remote_code=True).model).__name__ == "OwnModel"
    assert (folder / "ran").exists()


def spoil(llama: Path, change: str) -> Path:
    weights, config = llama / "model.safetensors", llama / "config.json"
    if change == "cut":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif change == "no weights":
        weights.unlink()
    elif change == "no config":
        config.unlink()
    elif change == "gguf inside":
        config.unlink()
        (llama / "model.Q4.gguf").touch()
    elif change == "config torn":
        config.write_text("{")
    else:
        config.write_text(json.dumps(json.loads(config.read_text()) | json.loads(change)))
    return llama


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("cut", "a .safetensors file is damaged or cut short"),
        ("no weights", "no file named model.safetensors"),
        ("no config", "a folder without config.json. Expected config.json, weights and tokenizer"),
        ("gguf inside", "model.Q4.gguf"),
        ("config torn", "not a valid JSON file"),
        ('{"model_type": "zork"}', "its model type is unknown to the transformers installed here; upgrade"),
        ('{"architectures": ["LlamaForNothing"]}', "no model class for architecture LlamaForNothing of type 'llama'"),
        ('{"architectures": ["GenerationConfig"]}', "no model class for architecture GenerationConfig"),
    ],
)
def test_a_spoilt_folder_is_refused_by_name(llama, change, expected):
    said = refused(str(spoil(llama, change)))
    assert expected in said
    assert said.startswith(str(llama))


def test_a_missing_path_is_answered_with_the_nearest_name(llama):
    assert f"no such file or folder. Did you mean '{llama}'?" in refused(str(llama.with_name("lama")))
    assert "no such file or folder" in refused(str(llama / "deep" / "deeper"))
    assert "no such file or folder" in refused("weights.safetensors")


def test_a_name_that_neither_disk_nor_hub_has_says_so():
    said = refused("dem")
    assert "no file or folder of that name here, and the hub did not give it" in said
    assert "Did you mean 'demo'?" in said


def test_a_hub_name_is_loaded_from_the_local_cache(llama, tmp_path, monkeypatch):
    from huggingface_hub import constants

    write_tokenizer(llama)
    commit = "0" * 40
    repo = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(llama, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load("someone/tiny").fingerprint == load(str(llama)).fingerprint


@pytest.mark.parametrize(
    "content", [b"", b"neither pickle nor zip", pickle.dumps([1, 2])], ids=["empty", "text", "another pickle"]
)
def test_a_file_that_is_no_checkpoint_is_refused(llama, tmp_path, content):
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    assert "damaged, cut short, or no checkpoint at all" in refused(str(path), config_from=str(llama))


@pytest.mark.parametrize(
    "held", [[torch.ones(2)], {"state_dict": {}}, {"step": 3}], ids=["list", "empty", "no tensors"]
)
def test_a_checkpoint_without_named_tensors_is_refused(llama, tmp_path, held):
    path = write_state(tmp_path, "weights.pt", held)
    assert "without named tensors; expected a state_dict" in refused(str(path), config_from=str(llama))


def test_bad_arguments_are_refused_with_what_is_accepted(llama, tmp_path):
    source, notes = str(llama), tmp_path / "notes.txt"
    notes.touch()
    assert "Did you mean 'bfloat16'?" in refused(source, dtype="bfloat61")
    assert "Did you mean 'eager'?" in refused(source, attention="eagre")
    assert "device 'cpuu'" in refused(source, device="cpuu")
    assert "a file of a kind that is not known; expected a Hugging Face folder" in refused(str(notes))
    assert "only a checkpoint needs it" in refused(source, config_from=source)
    assert "expected a Hugging Face folder or name" in refused(" ")
    weights = str(llama / "model.safetensors")
    assert "--config-from). Or give the folder it is in" in refused(weights)
    assert refused(weights, config_from=str(tmp_path / "nowhere")).startswith(str(tmp_path / "nowhere"))


def test_the_package_of_a_device_is_loaded_only_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("import torch\ntorch.utils.rename_privateuse1_backend('npu')\n")
    script = (
        "import sys; import noisescope as ns; from noisescope.model.load import load\n"
        "seen = []\n"
        "for device in ('cpu', 'npu:0'):\n"
        "    try:\n"
        "        load('nothing', device=device)\n"
        "    except ns.NoisescopeError as problem:\n"
        "        seen.append(('torch_npu' in sys.modules, str(problem)))\n"
        "print(seen)"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    (for_cpu, _), (for_npu, told) = ast.literal_eval(done.stdout)
    assert (for_cpu, for_npu) == (False, True)
    assert told.startswith("device 'npu:0': ") and "\n" not in told, "there is no card behind the package"

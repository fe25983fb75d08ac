"""Bad model directories are refused early, with a reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading import load as loading
from diffuspec.models.loading.load import load_model
from diffuspec.models.target import CausalTarget
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.models import VOCAB_SIZE, edit_json, make_longrope_model

SaveTarget = Callable[[str], Path]
WEIGHTS = "model.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
MROPE = {"type": "mrope", "mrope_section": [2, 2, 2]}
DEEP = "[" * 100_000
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
HUGE = struct.pack("<Q", 2**60)  # bytes of a header
SHARDS = {"a": "model-1.safetensors", "b": WEIGHTS}
UP, NORM, ONE = "model.layers.1.mlp.up_proj.weight", "model.norm.weight", torch.zeros(3)


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        (path / name).write_text(text)

    return edit


def configure(**changes: Any) -> Callable[[Path], None]:
    return lambda path: edit_json(path / "config.json", **changes)


def data(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the bytes of the weights."""

    def edit(path: Path) -> None:
        (path / WEIGHTS).write_bytes(change((path / WEIGHTS).read_bytes()))

    return edit


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        weights = load_file(path / WEIGHTS)
        change(weights)
        save_file(weights, path / WEIGHTS, {"format": "pt"})

    return edit


def pickle_weights(path: Path) -> None:
    torch.save(load_file(path / WEIGHTS), path / "pytorch_model.bin")
    (path / WEIGHTS).unlink()


def index(**content: Any) -> Callable[[Path], None]:
    return write("model.safetensors.index.json", json.dumps(content))


def leave_a_stale_file(path: Path) -> None:
    shutil.copy(path / WEIGHTS, path / "model-1.safetensors")
    index(weight_map={"a": "model-1.safetensors"})(path)


def lose_the_index(path: Path) -> None:
    (path / WEIGHTS).rename(path / "model-00001-of-00002.safetensors")


def replace_by_longrope(path: Path) -> None:
    make_longrope_model().save_pretrained(path)


def replace_by_gpt_neo(path: Path) -> None:
    config = GPTNeoConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_heads=2,
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        bos_token_id=None,
        eos_token_id=2,
    )
    GPTNeoForCausalLM(config).save_pretrained(path)


def empty_tensors(number: int) -> Callable[[bytes], bytes]:
    """Change weights so that they name many empty tensors more."""

    def change(content: bytes) -> bytes:
        [length] = struct.unpack("<Q", content[:8])
        entry = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        header = b",".join([b"{" + entry % 0, *(entry % place for place in range(1, number))])
        header += b"," + content[9 : 8 + length]
        return struct.pack("<Q", len(header)) + header + content[8 + length :]

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)

    return edit


BAD_DIRECTORIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), "has no config.json: not a model directory"),
    "broken config": (write("config.json", "{"), "cannot read config.json"),
    "config not an object": (write("config.json", "[1]"), "must be a JSON object"),
    "no model type": (configure(model_type=None), "has no model_type"),
    "unknown model type": (configure(model_type="frobnicator"), "'frobnicator' is not supported"),
    "LLaDA": (configure(model_type="llada"), r"the causal LMs .* and Efficient-DLM$"),
    "GPTQ": (configure(quantization_config=GPTQ), "weights are quantised by gptq.*none of"),
    "old GPTQ": (write("quantize_config.json", "{}"), "4 or 8 for GPTQ, got None"),
    "broken generation config": (write("generation_config.json", "{"), "cannot read gen"),
    "not a causal LM": (write("config.json", '{"model_type": "vit"}'), "'vit' is not supported"),
    "wrong kind of value": (configure(hidden_size="big"), "config.json cannot be used"),
    "a drafter": (configure(diffusion_attention="block_causal"), "is a diffusion LM"),
    "a drafter without layout": (configure(mask_token_id=5), "is a diffusion LM: it can draft"),
    "Dream": (configure(model_type="Dream"), "is a diffusion LM"),
    "no positions": (
        configure(max_position_embeddings=None), "lacks max_position_embeddings, without"
    ),
    "one position": (configure(max_position_embeddings=1), "must be 2 or more, got 1"),
    "bloom": (write("config.json", '{"model_type": "bloom"}'), r"'bloom' is not .* \(ALiBi\)"),
    "mpt": (write("config.json", '{"model_type": "mpt"}'), r"'mpt' is not .* \(ALiBi\)"),
    "a falcon with ALiBi": (configure(model_type="falcon", alibi=True), r"'falcon' is not .*ALiBi"),
    "no weights": (remove(WEIGHTS), "has no model.safetensors"),
    "pickled weights": (pickle_weights, "pickled weights only, which are never loaded"),
    "truncated weights": (
        data(lambda x: x[: len(x) // 2]), "truncated or corrupt: its header promises"
    ),
    "no header": (data(lambda x: x[:5]), "truncated or not a safetensors file"),
    "huge header": (data(lambda x: HUGE + x[8:]), "truncated or not a safetensors file"),
    "corrupt header": (data(lambda x: x[:8] + b"x" * 12 + x[20:]), "corrupt safetensors header"),
    "tensor before the data": (
        data(lambda x: re.sub(rb"(offsets\":\[)\d(\d+,)", rb"\1-\2", x, count=1)), "has bytes -"
    ),
    "missing shard": (
        index(weight_map=SHARDS), "model-1.safetensors is named in the index but missing"
    ),
    "empty index": (index(metadata={}), "has no weight_map"),
    "index with an absolute name": (
        index(weight_map={"a": "/etc/passwd"}), "names the file '/etc/passwd': names must be rel"
    ),
    "index with a name above": (
        index(weight_map={"a": "x/../../y.safetensors"}), "relative to the directory, without .."
    ),
    "index with a number": (index(weight_map={"a": 1}), "names the file 1: names must be"),
    "deep config": (write("config.json", DEEP), "config.json is nested too deeply"),
    "deep generation config": (write("generation_config.json", DEEP), "config.json is nested too"),
    "deep tokenizer": (write("tokenizer.json", DEEP), "tokenizer.json is refused: .* too deeply"),
    "deep tokenizer config": (
        write("tokenizer_config.json", DEEP), "tokenizer_config.json is refused: .* too deeply"
    ),
    "deep header": (
        data(lambda x: struct.pack("<Q", len(DEEP)) + DEEP.encode() + x[8:]), "nested too deeply"
    ),
    "many empty tensors": (data(empty_tensors(100_001)), "more than 100000"),
    "many layers": (configure(num_hidden_layers=10**9), "num_hidden_layers must be at most 10000"),
    "pipe for a config": (pipe("config.json"), "config.json is not a file"),
    "pipe for a template": (pipe("chat_template.jinja"), "chat_template.jinja is not a file"),
    "pipe for weights": (pipe(WEIGHTS), "model.safetensors is not a file"),
    "stale file": (leave_a_stale_file, "has model.safetensors beside an index of other files"),
    "no index": (lose_the_index, "has model-00001-of-00002.safetensors, but no model.safetensors"),
    "pointer": (write(WEIGHTS, POINTER), "model.safetensors is a pointer of Git LFS"),
    "pointer for a config": (write("config.json", POINTER), "config.json is a pointer of Git LFS"),
    "unknown angles": (configure(rope_parameters=None, rope_scaling=MROPE), "type 'mrope' is not"),
    "length-dependent angles": (replace_by_longrope, "must be at most 128, got 256"),
    "unsupported attention": (replace_by_gpt_neo, "the attention of gpt_neo is not supported"),
    "no positions, GPT-2": (write("config.json", '{"model_type": "gpt2"}'), "lacks n_positions"),
    "missing weight": (tensors(lambda x: x.pop(UP)), f"1 missing weights .* {UP}"),
    "unexpected weight": (tensors(lambda x: x.update(stray=ONE)), "1 unexpected weights .* stray"),
    "misshapen weight": (tensors(lambda x: x.update({NORM: ONE})), "cannot load its weights"),
    "heads that do not divide": (configure(num_attention_heads=7), "cannot"),
    "no tokenizer": (remove("tokenizer.json"), "has no tokenizer.json: a fast tokenizer is needed"),
    "broken tokenizer": (write("tokenizer.json", "{}"), "cannot load its tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(BAD_DIRECTORIES))
def test_bad_directory_is_refused_by_name(
    save_target: SaveTarget, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, message = BAD_DIRECTORIES[case]
    path = save_target("qwen2")
    spoil(path)
    capfd.readouterr()
    with pytest.raises(ModelLoadError, match=message) as caught:
        CausalTarget.load(TargetConfig(path=path, device="cpu"))
    assert str(path) in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_files_may_be_links_to_elsewhere_as_in_the_hubs_cache(
    save_target: SaveTarget, tmp_path: Path
) -> None:
    path, snapshot = save_target("qwen2"), tmp_path / "snapshot"
    snapshot.mkdir()
    for file in path.iterdir():
        (snapshot / file.name).symlink_to(file)
    (snapshot / WEIGHTS).rename(snapshot / "a.safetensors")
    names = dict.fromkeys(load_file(path / WEIGHTS), "a.safetensors")
    index(weight_map=names, metadata={})(snapshot)
    CausalTarget.load(TargetConfig(path=snapshot, device="cpu"))
    assert load_tokenizer(snapshot).get_vocab() == load_tokenizer(path).get_vocab()


@pytest.mark.parametrize(
    "case", ["truncated weights", "pickled weights", "LLaDA", "GPTQ", "a drafter", "Dream"]
)
def test_bad_directories_are_refused_before_weights_are_read(
    save_target: SaveTarget, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_target("qwen2")
    BAD_DIRECTORIES[case][0](path)
    monkeypatch.setattr(loading, "_read_model", None)
    with pytest.raises(ModelLoadError):
        load_model(path, device="cpu", is_target=True)


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere does not exist"):
        load_model(tmp_path / "nowhere", device="cpu")
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match="file is a file"):
        load_model(tmp_path / "file", device="cpu")
    with pytest.raises(ModelLoadError, match="nowhere does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match="file is a file"):
        load_tokenizer(tmp_path / "file")

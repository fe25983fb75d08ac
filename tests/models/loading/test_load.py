"""Loading: what is good loads in silence, what is bad fails early and says why."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BartForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BlenderbotForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from diffuspec.core.config import DType, TargetConfig
from diffuspec.core.errors import ModelLoadError, OutOfMemoryError, VocabularyError
from diffuspec.models.loading import checkpoint, load as loading
from diffuspec.models.loading.load import load_model
from diffuspec.models.target import CausalTarget
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.models import (
    FAMILIES,
    MAX_POSITIONS,
    NUM_KNOWN_IDS,
    SHAPE,
    VOCAB_SIZE,
    edit_json,
    make_longrope_model,
    save_tokenizer,
)

SaveTarget = Callable[[str], Path]
WEIGHTS = "model.safetensors"
DECODER = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 48,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": MAX_POSITIONS,
    "is_decoder": True,
    "is_encoder_decoder": False,
}


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        (path / name).write_text(text)

    return edit


def configure(**changes: Any) -> Callable[[Path], None]:
    return lambda path: edit_json(path / "config.json", **changes)


def truncate(path: Path) -> None:
    data = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(data[: len(data) // 2])


def cut_header(path: Path) -> None:
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:5])


def garble_header(path: Path) -> None:
    data = bytearray((path / WEIGHTS).read_bytes())
    data[8:20] = b"x" * 12
    (path / WEIGHTS).write_bytes(data)


def claim_a_huge_header(path: Path) -> None:
    data = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(struct.pack("<Q", 2**60) + data[8:])


def pickle_weights(path: Path) -> None:
    torch.save(load_file(path / WEIGHTS), path / "pytorch_model.bin")
    (path / WEIGHTS).unlink()


def shard(path: Path, **index: Any) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def lose_a_shard(path: Path) -> None:
    shard(path, weight_map={"a": "model-1.safetensors", "b": WEIGHTS})


def lose_the_weight_map(path: Path) -> None:
    shard(path, metadata={})


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(path / WEIGHTS)
    change(weights)
    save_file(weights, path / WEIGHTS, {"format": "pt"})


def lose_a_weight(path: Path) -> None:
    edit_weights(path, lambda weights: weights.__delitem__("model.layers.1.mlp.up_proj.weight"))


def add_a_weight(path: Path) -> None:
    edit_weights(path, lambda weights: weights.update(stray=torch.zeros(3)))


def reshape_a_weight(path: Path) -> None:
    edit_weights(path, lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}))


def replace_by_longrope(path: Path) -> None:
    make_longrope_model().save_pretrained(path)


def save_longrope(path: Path) -> Path:
    replace_by_longrope(path)
    save_tokenizer(path)
    return path


def replace_by_gpt_neo(path: Path) -> None:
    config = GPTNeoConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_heads=2,
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
    )
    GPTNeoForCausalLM(config).save_pretrained(path)


BAD_DIRECTORIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), "has no config.json: not a model directory"),
    "broken config": (write("config.json", "{"), "cannot read config.json"),
    "config not an object": (write("config.json", "[1]"), "must be a JSON object"),
    "no model type": (configure(model_type=None), "has no model_type"),
    "unknown model type": (configure(model_type="frobnicator"), "config.json cannot be used"),
    "not a causal LM": (write("config.json", '{"model_type": "vit"}'), "vit is not a causal LM"),
    "wrong kind of value": (configure(hidden_size="big"), "config.json cannot be used"),
    "a drafter": (configure(diffusion_attention="block_causal"), "is a diffusion LM"),
    "Dream": (configure(model_type="Dream"), "is a diffusion LM"),
    "no positions": (configure(max_position_embeddings=None), "max_position_embeddings must be"),
    "no weights": (remove(WEIGHTS), "has no model.safetensors"),
    "pickled weights": (pickle_weights, "pickled weights only, which are never loaded"),
    "truncated weights": (truncate, "truncated or corrupt: its header promises"),
    "no header": (cut_header, "truncated or not a safetensors file"),
    "huge header": (claim_a_huge_header, "truncated or not a safetensors file"),
    "corrupt header": (garble_header, "corrupt safetensors header"),
    "missing shard": (lose_a_shard, "model-1.safetensors is named in the index but missing"),
    "empty index": (lose_the_weight_map, "has no weight_map"),
    "angles that drafts change": (replace_by_longrope, "must be at most 128, got 256"),
    "attention of its own": (replace_by_gpt_neo, "the attention of gpt_neo is not supported"),
    "no positions, GPT-2": (write("config.json", '{"model_type": "gpt2"}'), "n_positions must be"),
    "missing weight": (lose_a_weight, "1 missing weights .* model.layers.1.mlp.up_proj.weight"),
    "unexpected weight": (add_a_weight, "1 unexpected weights .* stray"),
    "misshapen weight": (reshape_a_weight, "cannot load its weights"),
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
        CausalTarget.load(TargetConfig(path=path))
    assert str(path) in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("case", ["truncated weights", "pickled weights", "unknown model type"])
def test_nothing_is_read_of_a_directory_known_to_be_bad(
    save_target: SaveTarget, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_target("qwen2")
    BAD_DIRECTORIES[case][0](path)
    monkeypatch.setattr(loading, "_read_weights", None)
    with pytest.raises(ModelLoadError):
        load_model(path, num_slots=1)


def test_path_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere does not exist"):
        load_model(tmp_path / "nowhere", num_slots=1)
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match="file is a file"):
        load_model(tmp_path / "file", num_slots=1)
    with pytest.raises(ModelLoadError, match="nowhere does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match="file is a file"):
        load_tokenizer(tmp_path / "file")


def test_good_directory_loads_in_silence(
    save_target: SaveTarget, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save_target("qwen2")
    edit_json(path / "generation_config.json", eos_token_id=[7, 2])
    capfd.readouterr()
    target = CausalTarget.load(TargetConfig(path=path, max_sequences=2, max_tree_nodes=9))
    assert capfd.readouterr() == ("", "")
    assert target.info.vocab_size == NUM_KNOWN_IDS
    assert target.info.max_model_len == MAX_POSITIONS
    assert target.info.max_sequences == 2
    assert target.info.max_tree_nodes == 9
    assert target.info.eos_token_ids == (7, 2)
    assert target.runner.cache.max_len == MAX_POSITIONS + 9
    assert target.runner.cache.dtype == torch.float32
    target.close()


def test_sharded_weights_load(save_target: SaveTarget) -> None:
    path = save_target("qwen2")
    weights = load_file(path / WEIGHTS)
    names = sorted(weights)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, half in halves.items():
        save_file({name: weights[name] for name in half}, path / file, {"format": "pt"})
    (path / WEIGHTS).unlink()
    shard(
        path, metadata={}, weight_map={name: file for file, half in halves.items() for name in half}
    )
    assert load_model(path, num_slots=1).runner.vocab_size == VOCAB_SIZE


def test_dtype_is_what_was_asked_for(save_target: SaveTarget) -> None:
    runner = load_model(save_target("qwen2"), dtype="bfloat16", num_slots=1).runner
    assert runner.cache.dtype == torch.bfloat16
    assert next(runner.model.parameters()).dtype == torch.bfloat16


def test_context_longer_than_trained_for_is_refused(save_target: SaveTarget) -> None:
    with pytest.raises(ModelLoadError, match="trained for 256 positions, max_model_len is 257"):
        load_model(save_target("qwen2"), num_slots=1, max_len=257)


def test_angles_that_drafts_change_are_served_up_to_their_switch(tmp_path: Path) -> None:
    path = save_longrope(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'longrope' .* beyond 128 .* at most 128, got 129"):
        CausalTarget.load(TargetConfig(path=path, max_model_len=129))
    CausalTarget.load(TargetConfig(path=path, max_model_len=128)).close()


def test_one_set_of_angles_for_all_lengths_needs_no_limit(tmp_path: Path) -> None:
    path = save_longrope(tmp_path)
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    edit_json(path / "config.json", rope_parameters={**rope, "short_factor": rope["long_factor"]})
    CausalTarget.load(TargetConfig(path=path)).close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_absent_device_is_refused(save_target: SaveTarget) -> None:
    with pytest.raises(ModelLoadError, match="no CUDA device is available"):
        load_model(save_target("qwen2"), device="cuda", num_slots=1)


def test_too_little_memory_is_found_before_weights_are_read(
    save_target: SaveTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_available_bytes", lambda device: 2**20)
    monkeypatch.setattr(loading, "_read_weights", None)
    path = save_target("qwen2")
    with pytest.raises(
        OutOfMemoryError, match=r"0.\d\d GiB for weights and 1.\d\d GiB for its"
    ) as caught:
        load_model(path, num_slots=8192)
    assert str(path) in str(caught.value)
    assert "cpu has 0.00 GiB free" in str(caught.value)


def test_tokenizer_larger_than_the_model_is_refused(save_target: SaveTarget) -> None:
    path = save_target("qwen2")
    save_tokenizer(path, num_ids=VOCAB_SIZE + 1)
    with pytest.raises(VocabularyError, match="knows 121 token ids, the model only 120"):
        CausalTarget.load(TargetConfig(path=path))


def test_tokenizer_is_read_as_its_file_has_it(save_target: SaveTarget) -> None:
    """The model type is Qwen2, the tokenizer is not."""
    tokenizer = load_tokenizer(save_target("qwen2"))
    assert tokenizer("w5").input_ids == [5]
    assert len(tokenizer) == NUM_KNOWN_IDS


def test_attention_we_do_not_compute_is_refused(tmp_path: Path) -> None:
    Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=12)).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="Gemma2ForCausalLM cannot be run packed"):
        load_model(tmp_path, num_slots=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [BartForCausalLM, BlenderbotForCausalLM], ids=["bart", "bb"])
def test_positions_that_a_model_counts_itself_are_refused(
    tmp_path: Path, kind: Any, dtype: DType
) -> None:
    """It would take the rows of a step, whatever their places, for a text from its beginning."""
    torch.manual_seed(0)
    kind(kind.config_class(**DECODER)).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="does not place tokens by position_ids"):
        load_model(tmp_path, dtype=dtype, num_slots=1)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_positions_that_a_model_is_given_are_seen_in_bfloat16_too(
    save_target: SaveTarget, family: str
) -> None:
    load_model(save_target(family), dtype="bfloat16", num_slots=1)


def test_model_that_sees_later_tokens_is_refused(tmp_path: Path) -> None:
    shape = {key: SHAPE[key] for key in SHAPE if key not in ("initializer_range", "eos_token_id")}
    BertLMHeadModel(BertConfig(**shape, is_decoder=True)).save_pretrained(tmp_path)
    load_model(tmp_path, num_slots=1)
    edit_json(tmp_path / "config.json", is_decoder=False)
    with pytest.raises(ModelLoadError, match="its attention is not causal"):
        load_model(tmp_path, num_slots=1)


def test_windows_that_only_a_mask_tells_of_are_refused(tmp_path: Path) -> None:
    config = Qwen2MoeConfig(
        **SHAPE,
        num_experts=2,
        num_experts_per_tok=1,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=["sliding_attention"] * 3,
    )
    Qwen2MoeForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="a window of 8 in the mask alone"):
        load_model(tmp_path, num_slots=1)
    edit_json(tmp_path / "config.json", layer_types=["full_attention"] * 3)
    load_model(tmp_path, num_slots=1)


def test_models_without_attention_are_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", max_position_embeddings=64)
    with pytest.raises(ModelLoadError, match="mamba is not a stack of attention layers"):
        load_model(tmp_path, num_slots=1)

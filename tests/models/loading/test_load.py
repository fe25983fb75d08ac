"""Good model directories load as they are, without a word on the terminal."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from diffuspec.core.config import TargetConfig
from diffuspec.core.devices import CPU_LEVELS
from diffuspec.core.errors import ModelLoadError, OutOfMemoryError, VocabularyError
from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, VerifyRequest
from diffuspec.models.kernels import levels, operations
from diffuspec.models.loading import backend, checkpoint, load as loading
from diffuspec.models.loading.load import load_model
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.target import CausalTarget
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.models import (
    MAX_POSITIONS,
    NUM_KNOWN_IDS,
    SHAPE,
    VOCAB_SIZE,
    assert_same_logits,
    edit_json,
    make_model,
    random_tokens,
    reference,
    save_tokenizer,
    segment,
)

SaveTarget = Callable[[str], Path]
WEIGHTS = "model.safetensors"
PROMPT = [3, 14, 15, 92, 65]
NUM_NEW = 20


@pytest.mark.skipif(not operations.is_available, reason="there was no compiler")
def test_good_directory_loads_in_silence(
    save_target: SaveTarget, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save_target("qwen2")
    edit_json(path / "generation_config.json", eos_token_id=[7, 2])
    capfd.readouterr()
    target = CausalTarget.load(
        TargetConfig(path=path, device="cpu", max_sequences=2, max_tree_nodes=9)
    )
    assert capfd.readouterr() == ("", "")
    assert target.info.vocab_size == NUM_KNOWN_IDS
    assert target.info.max_model_len == MAX_POSITIONS
    assert target.info.max_sequences == 2
    assert target.info.max_tree_nodes == 9
    assert target.info.eos_token_ids == (7, 2)
    assert target.runner.max_len == MAX_POSITIONS + 9
    assert target.runner.cache.num_pages == 2 * num_pages_of(MAX_POSITIONS + 9)
    assert target.runner.cache.store.dtype == torch.float32
    target.close()


def test_missing_kernels_are_reported_once(
    save_target: SaveTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operations, "is_available", False)
    backend._warn_of_slow_kernels.cache_clear()
    for _ in range(2):
        load_model(save_target("qwen2"), device="cpu")
    assert caplog.text.count("about five times as long") == 1
    assert "there is a C++ compiler" in caplog.text


def test_a_processor_with_slow_kernels_is_reported_once_with_what_that_costs(
    save_target: SaveTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = levels.level()
    backend._warn_of_slow_kernels.cache_clear()
    levels.use_level(CPU_LEVELS[0])
    try:
        for _ in range(2):
            load_model(save_target("qwen2"), device="cpu")
    finally:
        levels.use_level(own)
    assert caplog.text.count("about four times as long") == ("x86-64" in CPU_LEVELS)


@pytest.mark.parametrize(
    ("dtype", "is_exact", "message"),
    [
        ("float32", True, "float32 on cpu, kernels: {kernels}; exact: "),
        ("float32", False, "float32 on cpu, kernels: {kernels}"),  # as of a drafter
    ],
)
def test_what_computes_a_model_is_logged_once(
    save_target: SaveTarget,
    caplog: pytest.LogCaptureFixture,
    dtype: Literal["float32"],
    is_exact: bool,
    message: str,
) -> None:
    path = save_target("qwen2")
    with caplog.at_level("INFO", logger="diffuspec.models.loading"):
        loaded = load_model(path, device="cpu", dtype=dtype, is_exact=is_exact)
    assert loaded.backend.is_exact == loaded.runner.is_exact == is_exact
    [line] = [one.getMessage() for one in caplog.records if one.name.endswith("loading.load")]
    assert line.startswith(f"{path}: {message.format(kernels=loaded.backend.kernels)}")
    assert ("; exact: " in line) == is_exact and "not exact" not in line


def test_activations_are_rounded_only_beside_quantised_weights(save_target: SaveTarget) -> None:
    with pytest.raises(
        ModelLoadError, match="quantize_activations is for quantised weights, these"
    ):
        load_model(save_target("qwen2"), device="cpu", quantize_activations=True)


def test_sharded_weights_load(save_target: SaveTarget) -> None:
    path = save_target("qwen2")
    weights = load_file(path / WEIGHTS)
    names = sorted(weights)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, half in halves.items():
        save_file({name: weights[name] for name in half}, path / file, {"format": "pt"})
    (path / WEIGHTS).unlink()
    weight_map = {name: file for file, half in halves.items() for name in half}
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert load_model(path, device="cpu").runner.vocab_size == VOCAB_SIZE


def test_the_dtype_is_the_requested_one(save_target: SaveTarget) -> None:
    runner = load_model(save_target("qwen2"), device="cpu", dtype="bfloat16").runner
    assert runner.cache.store.dtype == torch.bfloat16
    assert next(runner.model.parameters()).dtype == torch.bfloat16


def test_a_context_longer_than_the_trained_one_is_refused(save_target: SaveTarget) -> None:
    with pytest.raises(ModelLoadError, match="trained for 256 positions, max_model_len is 257"):
        load_model(save_target("qwen2"), device="cpu", max_len=257)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_absent_device_is_refused(save_target: SaveTarget) -> None:
    with pytest.raises(ModelLoadError, match="no CUDA device is available"):
        load_model(save_target("qwen2"), device="cuda")


@pytest.mark.parametrize(("cache_memory", "num_pages"), [(1_000_000, 27), (0.5, 35)])
def test_cache_memory_decides_how_many_pages_there_are(
    save_target: SaveTarget,
    monkeypatch: pytest.MonkeyPatch,
    cache_memory: float,
    num_pages: int,
) -> None:
    """As bytes, or as a share of the memory for weights and cache."""
    monkeypatch.setattr(loading, "memory_bytes", lambda device: 3_100_000)
    path = save_target("qwen2")
    loaded = load_model(path, device="cpu", dtype="float32", cache_memory=cache_memory)
    cache = loaded.runner.cache
    assert cache.num_pages == num_pages
    assert cache.store.shape.num_bytes(PAGE_SIZE, torch.float32) == 36_864


def test_requests_are_as_long_as_the_cache_takes_them(
    save_target: SaveTarget, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_target("qwen2")
    config = TargetConfig(path=path, device="cpu", max_tree_nodes=4, cache_memory=75_000)
    target = CausalTarget.load(config)
    target.close()
    assert target.info.max_model_len == 2 * PAGE_SIZE - 2 * 4
    assert "requests have at most 120 tokens" in caplog.text
    with pytest.raises(ModelLoadError, match=r"cache_memory 1000\.0 has room for 0 tokens"):
        CausalTarget.load(config.model_copy(update={"cache_memory": 1000.0, "max_tree_nodes": 32}))


def test_too_little_memory_is_found_before_weights_are_read(
    save_target: SaveTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_available_bytes", lambda device: 2**20)
    monkeypatch.setattr(loading, "_read_model", None)
    path = save_target("qwen2")
    with pytest.raises(
        OutOfMemoryError, match=r"0.\d\d GiB for weights and 1.\d\d GiB for its"
    ) as caught:
        load_model(path, device="cpu", max_sequences=8192)
    assert str(path) in str(caught.value)
    assert "cpu has 0.00 GiB free" in str(caught.value)


def test_tokenizer_larger_than_the_model_is_refused(save_target: SaveTarget) -> None:
    path = save_target("qwen2")
    save_tokenizer(path, num_ids=VOCAB_SIZE + 1)
    with pytest.raises(VocabularyError, match="knows 121 token ids, the model only 120"):
        CausalTarget.load(TargetConfig(path=path, device="cpu"))


def test_tokenizer_is_read_as_its_file_has_it(save_target: SaveTarget) -> None:
    """The model type is Qwen2, the tokenizer is not."""
    tokenizer = load_tokenizer(save_target("qwen2"))
    assert tokenizer("w5").input_ids == [5]
    assert len(tokenizer) == NUM_KNOWN_IDS


def test_models_without_attention_are_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", max_position_embeddings=64)
    with pytest.raises(ModelLoadError, match="mamba is not supported: it is not a stack"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("where", ["generation_config.json", "neither", "config.json"])
async def test_answers_end_where_transformers_ends_them(
    save_target: SaveTarget, where: str
) -> None:
    """Ids from generation_config.json come late in the continuation, those of config.json early.

    Where generation_config.json has none, transformers never ends, and we end by config.json.
    """
    path, model = save_target("qwen2"), make_model("qwen2")
    model.generation_config.eos_token_id = None
    plain = generate(model)
    early, late = [token for i, token in enumerate(plain) if token not in plain[:i]][2:4]
    edit_json(path / "config.json", eos_token_id=early)
    generation_config = path / "generation_config.json"
    edit_json(generation_config, eos_token_id=[late])
    if where == "config.json":
        generation_config.unlink()
    elif where == "neither":
        generation_config.write_text("{}")
    answer = await decode_until_eos(CausalTarget.load(TargetConfig(path=path, device="cpu")))
    expected = generate(AutoModelForCausalLM.from_pretrained(path))
    assert answer == expected[: len(answer)] and (len(answer) < len(expected)) == (
        where == "neither"
    )
    ends = {"config.json": early, "generation_config.json": late, "neither": early}
    assert answer[-1] == ends[where]


def generate(model: Any) -> list[int]:
    prompt = torch.tensor([PROMPT])
    output = model.generate(prompt, max_new_tokens=NUM_NEW, do_sample=False)
    continuation: list[int] = output[0, len(PROMPT) :].tolist()
    return continuation


async def decode_until_eos(target: CausalTarget) -> list[int]:
    answer: list[int] = []
    while len(answer) < NUM_NEW and not set(answer) & set(target.info.eos_token_ids):
        prefix = np.array([*PROMPT, *answer], np.int32)
        asked = VerifyRequest("a", prefix, len(PROMPT), EMPTY_TREE, SamplingParams())
        [verdict] = await target.verify([asked])
        answer += verdict.token_ids
    target.close()
    return answer


def test_norms_with_a_weight_for_each_head_compute_what_transformers_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CohereForCausalLM(CohereConfig(**SHAPE, use_qk_norm=True)).eval()
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.normal_(weight, 1.0)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    token_ids = random_tokens(9)
    runner = load_model(tmp_path, device="cpu", dtype="float32").runner
    assert_same_logits(runner.forward([segment(0, 0, token_ids)]), reference(model, token_ids))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_of_an_odd_size_are_computed_one_by_one(
    tmp_path: Path, dtype: Literal["float32", "bfloat16"]
) -> None:
    sizes = {"intermediate_size": 47, "num_local_experts": 3, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    model = MixtralForCausalLM(MixtralConfig(**{**SHAPE, **sizes})).eval()
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    token_ids = random_tokens(9)
    runner = load_model(tmp_path, device="cpu", dtype=dtype).runner
    logits = runner.forward([segment(0, 0, token_ids)])
    if dtype == "float32":
        model.set_experts_implementation("eager")
        assert_same_logits(logits, reference(model, token_ids))
    assert logits.isfinite().all()


@pytest.mark.skipif(not operations.is_available, reason="without kernels there is no trial")
def test_a_cache_is_freed_before_the_next_one_where_the_trial_of_exactness_fails(
    save_target: SaveTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[weakref.ref[KVCache]] = []

    class Cache(KVCache):
        def __init__(self, *args: Any, **options: Any) -> None:
            assert not any(cache() for cache in caches)
            super().__init__(*args, **options)
            caches.append(weakref.ref(self))

    monkeypatch.setattr("diffuspec.models.runner.KVCache", Cache)
    path = save_target("gemma2")  # whose scores are capped
    loaded = load_model(path, device="cpu", is_exact=True)
    assert loaded.runner.is_exact and not loaded.runner.takes_trees
    assert len(caches) == 2

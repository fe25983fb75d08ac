"""Generations of processors: products of each have the same bits, and so have a model's logits."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from diffuspec.core.devices import CPU_LEVELS, wanted_cpu_level
from diffuspec.core.errors import ConfigError
from diffuspec.models.attention.cpu import CpuAttention
from diffuspec.models.attention.interface import Projections, Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.kernels import levels
from diffuspec.models.kernels.products import MatrixProduct
from diffuspec.models.loading.load import load_model
from diffuspec.models.pages.store import CacheShape, PageStore
from diffuspec.models.pages.table import PageTable
from diffuspec.pairs import tiny

# Levels that multiply and add with one rounding; in float32, AMX is not used.
HERE = [
    level
    for level in CPU_LEVELS[: CPU_LEVELS.index(levels.own_level()) + 1]
    if level not in ("x86-64", "amx")
]
NEEDS_X86_64 = pytest.mark.skipif("amx" not in CPU_LEVELS, reason="names levels of x86-64")
# Digest of the logits of the embedded pair's target in float32, with any processor and threads.
LOGITS = "0c258f55a784b3b39dc2298ec550ca5b01ceb852e0732d9ad79a3e1bbe1e0bde"


@pytest.mark.skipif(not HERE, reason="needs compiled kernels")
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 20, 300])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_products_of_all_levels_have_the_same_bits(dtype, rounds, num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(150, 77, generator=generator).to(dtype).float()
    inputs = torch.randn(num_rows, 77, generator=generator)
    levels.use_level(HERE[0])
    product = MatrixProduct(weight, torch.randn(150, generator=generator), rounds)
    outputs = []
    for level in HERE:
        levels.use_level(level)
        outputs.append(product(inputs))
    assert all(torch.equal(one, outputs[0]) for one in outputs)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_attention_of_all_levels_has_the_same_bits_for_whole_prompts_and_row_by_row(
    num_heads, window
):
    size, dim = 150, 48
    generator = torch.Generator().manual_seed(0)
    new = [torch.randn(n, size, dim, generator=generator) for n in (num_heads, 1, 1)]
    outputs = []
    for level, step in [(level, step) for level in HERE for step in (size, 7, 1)]:
        levels.use_level(level)
        table = PageTable("rows", pages=np.array([1, 2, 0], np.int32))
        cache = PageStore(CacheShape(1, 1, dim), 3, transposes_keys=True)
        parts = []
        for first in range(0, size, step):
            places = np.arange(first, min(first + step, size))
            part = CpuAttention(Segment(table, first, places, places, "causal", ()), cache)
            rows = Projections(*(one[:, first : first + step] for one in new))
            parts.append(part.attend(0, rows, Scoring(0.3, window=window)))
        outputs.append(torch.cat(parts))
    assert all(torch.equal(one, outputs[0]) for one in outputs)


@pytest.mark.no_cover
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("level", HERE)
def test_logits_are_the_same_on_every_processor_and_with_any_number_of_threads(level, num_threads):
    levels.use_level(level)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert _digest_of_logits() == LOGITS
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def _digest_of_logits() -> str:
    """Return the digest of a prompt's logits, and of those of some steps of one row."""
    loaded = load_model(tiny.TARGET, device="cpu", dtype="float32", max_len=256, is_exact=True)
    runner = loaded.runner
    table = runner.cache.acquire("a", np.zeros(0, np.int32))
    prompt = (7919 * np.arange(1, 101) % 250).astype(np.int32)
    steps = [(prompt, np.arange(100))]
    steps += [(np.array([k % 250], np.int32), np.array([k])) for k in range(100, 110)]
    digest = hashlib.sha256()
    for token_ids, places in steps:
        rows = list(range(len(places)))
        segment = Segment(table, int(places[0]), token_ids, places, "causal", rows)
        digest.update(runner.forward([segment]).numpy().tobytes())
        runner.cache.commit(table, token_ids, len(token_ids))
    return digest.hexdigest()


@NEEDS_X86_64
def test_a_level_that_the_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(levels, "own_level", lambda: "x86-64-v3")
    with pytest.raises(ConfigError, match="is amx, which this processor lacks: it has x86-64-v3"):
        levels.use_level("amx")


@NEEDS_X86_64
def test_an_unknown_level_is_refused_with_those_that_there_are(monkeypatch):
    monkeypatch.setenv("DIFFUSPEC_CPU_LEVEL", "avx2")
    with pytest.raises(ConfigError, match="must be one of x86-64, x86-64-v3, x86-64-v4, amx, got"):
        wanted_cpu_level()

"""Quantised weights on a GPU: logits are those of the format, with the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch

from diffuspec.models.hidden_states import HiddenStates
from diffuspec.models.importing.convert import import_gguf
from diffuspec.models.layers.linear import KernelLinear
from diffuspec.models.loading.load import load_model
from diffuspec.models.runner import ModelRunner
from tests.support.gguf_files import write_gguf
from tests.support.gpu import NEEDS_GPU
from tests.support.logits import logits_of
from tests.support.models import segment
from tests.support.quantized_models import FORMATS, W8A8, save_quantized

pytestmark = NEEDS_GPU

FILES = {
    kind: kind.split("+")
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q4_K+Q6_K+Q5_K", "BF16+Q4_0")
}
START = 85
ALL = (*FORMATS, "W8A8", *FILES)

Save: TypeAlias = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Save a model in a format, and the same weights in float32; return where both are."""

    def save(form: str) -> tuple[Path, Path]:
        if form in FILES:
            file, plain = tmp_path / "tiny.gguf", tmp_path / "plain"
            write_gguf(file, kinds=FILES[form])
            import_gguf(file, plain, "float32")
            return file, plain
        path = tmp_path / "model"
        return path, save_quantized(path, W8A8 if form == "W8A8" else FORMATS[form])

    return save


def runner_of(path: Path) -> ModelRunner:
    loaded = load_model(path, device="cuda", dtype="bfloat16", max_sequences=8, is_exact=True)
    return loaded.runner


@pytest.mark.parametrize("form", ALL)
def test_logits_are_those_of_the_same_weights_on_a_cpu(form: str, save: Save) -> None:
    path, plain = save(form)
    expected = logits_of(plain)
    most = {"float32": 0.1 if form == "W8A8" else 1e-4, "bfloat16": 0.1}
    for dtype in ("float32", "bfloat16"):
        error = (logits_of(path, "cuda", dtype) - expected).norm() / expected.norm()
        assert error < most[dtype], (dtype, error)


@pytest.mark.parametrize("form", ALL)
def test_a_row_has_the_same_bits_with_any_number_of_rows(form: str, save: Save) -> None:
    path, _ = save(form)
    runner = runner_of(path)
    assert runner.takes_trees, "rows are independent, not of a fixed number"
    token_ids = (np.arange(150) * 7919 % 250).astype(np.int32)
    whole = runner.forward([segment(runner.cache.acquire("whole", token_ids), 0, token_ids)])
    table = runner.cache.acquire("a", token_ids)
    runner.feed(table, token_ids[:START], 0)
    for count in (1, 2, 4, 16, 64, 65):
        step = segment(table, START, token_ids[START : START + count])
        captured = runner.forward([step])
        assert torch.equal(captured, whole[START : START + count])
        assert torch.equal(captured, runner.forward([step], HiddenStates([0])))


def test_weights_stay_quantised_in_memory(save: Save) -> None:
    path, _ = save("Q4_K")
    layers = [module for module in runner_of(path).model.modules() if hasattr(module, "product")]
    kinds = [getattr(one.product, "layer", one) for one in layers]
    assert kinds and all(isinstance(one, KernelLinear) for one in kinds)

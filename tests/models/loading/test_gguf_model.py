"""GGUF files as they are: their weights, the models they are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.importing.convert import import_gguf
from diffuspec.models.kernels.quantized import QuantizedMatrix
from diffuspec.models.loading.gguf_blocks import FORMATS
from diffuspec.serve.conventions import read_conventions
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.endings import read_eos_token_ids
from diffuspec.text.gguf_directory import model_directory
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.checkpoints import CHAT_TEMPLATE
from tests.support.gguf_files import random_blocks, write_gguf
from tests.support.logits import logits_of
from tests.support.models import assert_same_logits


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def plain_logits(gguf_file: Path) -> torch.Tensor:
    return logits_of(gguf_file)


@pytest.mark.parametrize("number", FORMATS)
def test_weights_are_those_of_the_package_gguf(number: int) -> None:
    form, kind = FORMATS[number], GGMLQuantizationType(number)
    assert (form.num_inputs, form.num_bytes) == GGML_QUANT_SIZES[kind]
    assert form.name == kind.name
    raw = random_blocks(np.random.default_rng(number), (192, 512), kind)
    blocks = torch.from_numpy(raw).view(192, -1, form.num_bytes)
    matrix = QuantizedMatrix(
        form.layout, (192, 512), [form.split(blocks[:128]), form.split(blocks[128:])]
    )
    expected = torch.from_numpy(quants.dequantize(raw, kind))
    assert torch.equal(matrix.rows(torch.arange(192)), expected)
    if form.layout.bits == 4 or kind.name == "Q8_0":
        num_bytes = sum(field.nbytes for field in matrix._fields if field is not None)
        assert num_bytes <= 1.03 * raw.nbytes


@pytest.mark.parametrize(
    "kinds",
    [["Q8_0"], ["Q4_0"], ["Q4_1", "Q8_0"], ["F16"], ["BF16"], ["Q4_K", "Q6_K", "Q5_K"]],
    ids="-".join,
)
def test_a_file_has_the_logits_of_the_directory_that_is_made_of_it(
    kinds: list[str], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", kinds=kinds)
    import_gguf(file, tmp_path / "model", "float32")
    assert torch.equal(logits_of(file), logits_of(tmp_path / "model"))


YARN = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}
YARN_OF_64 = YARN | {"llama__rope__scaling__original_context_length": 64}


@pytest.mark.parametrize(
    "values",
    [
        {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0},
        {"llama__rope__scale_linear": 2.0},
        YARN,
        YARN_OF_64,
        YARN_OF_64 | {"llama__rope__scaling__attn_factor": 0.5},
        YARN_OF_64 | {"llama__rope__scaling__yarn_beta_fast": 8.0},
    ],
)
def test_scaled_positions_are_those_of_the_file(
    values: dict[str, Any], plain_logits: torch.Tensor, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "scaled.gguf", **values)
    import_gguf(file, tmp_path / "model", "float32")
    scaled = logits_of(file)
    assert torch.equal(scaled, logits_of(tmp_path / "model"))
    assert not torch.equal(scaled, plain_logits)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"llama__rope__scaling__type": "longrope"}, "'longrope' is not supported; none, linear"),
        (YARN | {"llama__rope__scaling__factor": 0.5}, "factor must be 1 or more, got 0.5"),
        (YARN | {"llama__rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor must be 1.0"),
    ],
)
def test_scaled_positions_that_cannot_be_run_are_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        logits_of(write_gguf(tmp_path / "scaled.gguf", **values))


def test_layers_of_one_input_may_be_plain_and_quantised(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", kinds=["BF16", "Q4_0"])
    import_gguf(file, tmp_path / "model", "float32")
    assert_same_logits(logits_of(file), logits_of(tmp_path / "model"))


def test_tokenizer_template_and_ends_are_those_of_the_file(gguf_file: Path) -> None:
    tokenizer = load_tokenizer(gguf_file)
    assert read_conventions(gguf_file, tokenizer, ServeSettings()).template == CHAT_TEMPLATE
    assert read_eos_token_ids(gguf_file, tokenizer)[:2] == (256, 257)
    assert tokenizer.decode(tokenizer.encode("x = 12; größer")) == "x = 12; größer"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    before = model_directory(file)
    assert model_directory(file) == before
    write_gguf(file, kinds=["Q4_0"])
    assert model_directory(file) != before


def test_a_file_in_bfloat16_has_nearly_the_logits_of_its_own_arithmetic(gguf_file: Path) -> None:
    exact, rounded = logits_of(gguf_file), logits_of(gguf_file, dtype="bfloat16")
    assert 0 < (exact - rounded).abs().max() < 0.05 * exact.abs().max()


def test_activations_in_8_bits_change_logits_a_little(gguf_file: Path) -> None:
    exact, rounded = logits_of(gguf_file), logits_of(gguf_file, quantize_activations=True)
    assert 0 < (exact - rounded).abs().max() < 0.05 * exact.abs().max()


def test_a_file_is_no_diffusion_lm(gguf_file: Path) -> None:
    target = TargetInfo(300, 256, max_sequences=1, eos_token_ids=(256,))
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf is a causal LM.*of kind sps.*directory"):
        DiffusionDrafter.load(DiffuSpecConfig(path=gguf_file, device="cpu"), target)


def test_what_cannot_be_run_as_it_is_names_what_can(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"missing\.gguf does not exist"):
        logits_of(tmp_path / "missing.gguf")
    other = write_gguf(tmp_path / "odd.gguf", kinds=["Q2_K"])
    with pytest.raises(ModelLoadError, match=r"stored as Q2_K.*Q8_0.*diffuspec model import"):
        logits_of(other)

"""What a config says of quantised weights is read, or refused with what can be used."""

from __future__ import annotations

from typing import Any

import pytest

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.quantization import Quantization, read_quantization
from tests.support.quantized_models import FORMATS, ROUNDED_INPUTS, W8A8

AWQ, GPTQ, PACKED = (dict(FORMATS[name].config) for name in ("AWQ", "GPTQ", "W4A16"))
GROUP: dict[str, Any] = W8A8.config["config_groups"]["group_0"]


def group(**changes: Any) -> dict[str, Any]:
    return {**W8A8.config, "config_groups": {"group_0": GROUP | changes}}


def weights(**changes: Any) -> dict[str, Any]:
    return group(weights=GROUP["weights"] | changes)


def inputs(**changes: Any) -> dict[str, Any]:
    return group(input_activations=ROUNDED_INPUTS | changes)


SPARSE = {"format": "sparse-24-bitmask"}
ALSO_W8A16 = {"a": GROUP, "b": GROUP | {"input_activations": None}}

REFUSED: dict[str, tuple[Any, str]] = {
    "not an object": ("awq", "must be an object, got 'awq'"),
    "MXFP4": ({"quant_method": "mxfp4"}, "'mxfp4' is not supported: use .* bfloat16"),
    "FP8": ({"quant_method": "fp8"}, "'fp8' is not supported: use .* W8A8"),
    "another FP8": ({"quant_method": "fbgemm_fp8"}, "'fbgemm_fp8' .* W8A8"),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "'bitsandbytes' .* AWQ, GPTQ or GGUF"),
    "HQQ": ({"quant_method": "hqq"}, "'hqq' is not supported: AWQ of 4 bits, GPTQ"),
    "no method": ({"bits": 4}, "quant_method None is not"),
    "AWQ's other bits": (AWQ | {"bits": 3}, "bits must be 4 for AWQ, got 3: AWQ of"),
    "AWQ's other order": (AWQ | {"version": "gemv"}, "version must be 'gemm', got 'gemv'"),
    "AWQ's odd groups": (AWQ | {"group_size": 20}, "group_size .* multiple of 8.*, got 20"),
    "GPTQ's other bits": (GPTQ | {"bits": 3}, "4 or 8 for GPTQ, got 3"),
    "GPTQ's other form": (GPTQ | {"checkpoint_format": "marlin"}, "or 'gptq_v2', got 'marlin'"),
    "no groups": (PACKED | {"config_groups": {}}, "config_groups must be an object with groups"),
    "odd group": (PACKED | {"config_groups": {"W4A16": ["Linear"]}}, "W4A16: must be an object"),
    "no weights": (group(weights=None), "weights must be an object, got None"),
    "FP8 of compressed-tensors": (PACKED | {"format": "float-quantized"}, "'float-.* W8A8"),
    "MXFP4 of it": (PACKED | {"format": "mxfp4-pack-quantized"}, "mxfp4.* in bfloat16"),
    "FP8 by type": (weights(type="float"), "of type float"),
    "two bits": (weights(num_bits=2), "num_bits must be 4 or 8, got 2"),
    "blocks": (weights(strategy="block"), "strategy must be group, .*, got 'block'"),
    "W4A8": (weights(num_bits=4), "weights must be of 8 bits by channel"),
    "static inputs": (inputs(dynamic=False), "dynamic must be True, got False"),
    "inputs with zeros": (inputs(symmetric=False), "symmetric must be True"),
    "FP8 inputs": (inputs(type="float"), "type must be 'int', got 'float'"),
    "outputs": (group(output_activations={"num_bits": 8}), "output_activations must be null"),
    "two kinds of inputs": (PACKED | {"config_groups": ALSO_W8A16}, "some round their inputs"),
    "quantised cache": (PACKED | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme must be"),
    "sparse": (PACKED | {"sparsity_config": SPARSE}, "format must be 'dense', got 'sparse-24-"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_so_and_what_can_be_used(case: str) -> None:
    data, message = REFUSED[case]
    with pytest.raises(ModelLoadError, match=f"^DIR: config.json.*{message}"):
        read_quantization("DIR: config.json", data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (AWQ, Quantization("awq", "AWQ, 4 bits in groups of 128")),
        (
            {"quant_method": "awq", "w_bit": 4, "version": "GEMM"},
            Quantization("awq", "AWQ, 4 bits"),
        ),
        (GPTQ, Quantization("gptq", "GPTQ, 4 bits in groups of 128", zero_shift=1)),
        (
            GPTQ | {"checkpoint_format": "gptq_v2", "group_size": -1},
            Quantization("gptq", "GPTQ, 4 bits by output"),
        ),
        (
            PACKED,
            Quantization("compressed-tensors", "compressed-tensors, W4A16 in groups of 128"),
        ),
        (
            W8A8.config,
            Quantization(
                "compressed-tensors", "compressed-tensors, W8A8 by output", rounds_rows=True
            ),
        ),
    ],
)
def test_what_is_run_is_read(data: dict[str, Any], expected: Quantization) -> None:
    assert read_quantization("here", data) == expected

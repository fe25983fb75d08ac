"""The logits that a model directory or a GGUF file gives a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from diffuspec.core.devices import Device, DType
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.load import load_model

PROMPT = np.frombuffer(b"def f(x): return x", np.uint8).astype(np.int32)


def logits_of(
    path: Path,
    device: Device = "cpu",
    dtype: DType = "float32",
    *,
    quantize_activations: bool = False,
) -> torch.Tensor:
    """Return the logits of all positions of a prompt; its last two tokens are read one by one."""
    loaded = load_model(
        path,
        device=device,
        dtype=dtype,
        max_len=64,
        num_scratch_rows=16,
        is_exact=True,
        quantize_activations=quantize_activations,
    )
    runner = loaded.runner
    table = runner.cache.acquire("one", PROMPT)
    found, start = [], 0
    for tokens in (PROMPT[:-2], PROMPT[-2:-1], PROMPT[-1:]):
        count = len(tokens)
        positions = np.arange(start, start + count)
        segment = Segment(table, start, tokens, positions, "causal", list(range(count)))
        found.append(torch.stack(list(runner.forward([segment]))))
        runner.cache.commit(table, tokens, count)
        start += count
    return torch.cat(found).cpu()

"""Where a model runs and in which precision, as configurations say it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal, TypeAlias

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

DEVICE_HELP = "Where the model runs; auto takes a GPU if there is one."
DTYPE_HELP = "Type of weights and activations; auto is bfloat16 on a GPU and float32 on CPUs."

_FLAGS = {"amx_bf16", "avx512_bf16"}  # of Linux's /proc/cpuinfo


@functools.cache
def has_bfloat16_products() -> bool:
    """Whether the processor multiplies bfloat16 matrices itself. False where it does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not _FLAGS.isdisjoint(flags.split())

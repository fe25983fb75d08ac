"""Where a model runs and in which precision, in the terms of the configuration."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import Literal, TypeAlias

from diffuspec.core.errors import ConfigError

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

DEVICE_HELP = "Where the model runs; auto takes a GPU if there is one."
DTYPE_HELP = "Type of weights and activations; auto is bfloat16 on a GPU and float32 on CPUs."

_X86_64 = ("x86-64", "x86-64-v3", "x86-64-v4", "amx")
_AARCH64 = ("aarch64", "aarch64-dotprod")
_LEVELS = {"x86_64": _X86_64, "AMD64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}
# Levels of this machine's kind of processor; every one has the first.
CPU_LEVELS = _LEVELS.get(platform.machine(), (platform.machine(),))
CPU_LEVEL_VARIABLE = "DIFFUSPEC_CPU_LEVEL"
_FLAGS = {"amx_bf16", "avx512_bf16"}  # names in Linux's /proc/cpuinfo


def wanted_cpu_level() -> str | None:
    """Return the level that the environment requests; None: the machine's own.

    Raises ConfigError for an unknown level.
    """
    level = os.environ.get(CPU_LEVEL_VARIABLE) or None
    if level is not None and level not in CPU_LEVELS:
        raise ConfigError(
            f"{CPU_LEVEL_VARIABLE} must be one of {', '.join(CPU_LEVELS)}, got {level!r:.80}"
        )
    return level


@functools.cache
def has_bfloat16_products() -> bool:
    """Return whether the processor multiplies bfloat16 matrices; False if that is unknown."""
    if wanted_cpu_level() in CPU_LEVELS[:2]:
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not _FLAGS.isdisjoint(flags.split())

"""The level of instruction sets used for products on a CPU: see cpu/level.h."""

from __future__ import annotations

import functools
import logging

from diffuspec.core.devices import CPU_LEVEL_VARIABLE, CPU_LEVELS, wanted_cpu_level
from diffuspec.core.errors import ConfigError
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import has_bfloat16_vectors, has_tiles

if operations.is_available:
    from diffuspec.models.kernels import _cpu

logger = logging.getLogger(__name__)

_NUMBERS = {CPU_LEVELS[0]: 0, "aarch64-dotprod": 1, "x86-64-v3": 3, "x86-64-v4": 4, "amx": 5}
_INSTRUCTIONS = {
    "aarch64": "NEON",
    "aarch64-dotprod": "NEON with dot products",
    "x86-64-v3": "AVX2",
    "x86-64-v4": "AVX-512 with VNNI",
    "amx": "AMX and AVX-512",
}


def own_level() -> str:
    """Return the highest level of this machine, one of CPU_LEVELS."""
    return _name(_cpu.own_level()) if operations.is_available else CPU_LEVELS[0]


def level() -> str:
    """Return the level in use."""
    return _name(_cpu.level()) if operations.is_available else CPU_LEVELS[0]


def describe() -> str:
    """Return the level in use, its instructions, and why it is not a higher one."""
    instructions = _INSTRUCTIONS.get(level(), "plain C++")
    if has_bfloat16_vectors() and not has_tiles():
        instructions += " and bfloat16"
    reason = f"chosen by {CPU_LEVEL_VARIABLE}; the processor has {own_level()}"
    if level() == own_level():
        reason = "the processor's highest level"
    return f"{level()} ({instructions}), {reason}"


def is_slow() -> bool:
    """Return whether the kernels in use are plain C++."""
    return level() not in _INSTRUCTIONS


def use_level(name: str) -> None:
    """Use a level of this machine for models that are loaded from now on.

    Raises ConfigError if the machine lacks it.
    """
    if _NUMBERS[name] > _NUMBERS[own_level()]:
        raise ConfigError(
            f"{CPU_LEVEL_VARIABLE} is {name}, which this processor lacks: it has {own_level()}"
        )
    if operations.is_available:
        _cpu.use_level(_NUMBERS[name])


@functools.cache
def use_wanted_level() -> None:
    """Use the level that the environment requests, once per process. Raises ConfigError."""
    wanted = wanted_cpu_level()
    if wanted is not None:
        use_level(wanted)
    logger.info("products on the CPU: %s of %s", level(), own_level())


def _name(number: int) -> str:
    return next(name for name, one in _NUMBERS.items() if one == number)

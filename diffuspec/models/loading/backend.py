"""The backend of a model on this machine, and whether results are bitwise reproducible."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from diffuspec.core.devices import Device, DType
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.levels import describe, is_slow, level, use_wanted_level
from diffuspec.models.runner import ModelRunner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """The device, the type and the kernels of a model."""

    device: torch.device
    dtype: torch.dtype
    kernels: str
    is_exact: bool  # before loading: whether to try for exactness; afterwards: the result
    reason: str  # why it is exact or not
    # whether rows are rounded to 8 bits for weights quantised in groups
    quantizes_activations: bool = False

    def __str__(self) -> str:
        exactness = "exact" if self.is_exact else "not exact"
        return f"{self.arithmetic}; {exactness}: {self.reason}"

    @property
    def arithmetic(self) -> str:
        """The type, the device and the kernels, in words."""
        dtype = str(self.dtype).removeprefix("torch.")
        kernels = self.kernels + ", activations in 8 bits" * self.quantizes_activations
        return f"{dtype} on {self.device}, kernels: {kernels}"

    def of(self, runner: ModelRunner) -> Backend:
        """Return the backend of a runner, with the result of its exactness trial."""
        if runner.is_exact:
            by_shape = "every step has one shape"
            reason = "no row depends on the others" if runner.takes_trees else by_shape
            return replace(self, is_exact=True, reason=reason)
        if self.is_exact:
            return replace(self, is_exact=False, reason="a row depends on the others of its batch")
        return self


def choose_backend(
    path: Path, device: Device, dtype: DType, is_exact: bool | None = None
) -> Backend:
    """Choose the device, the type and the kernels of a model. Raises ModelLoadError, ConfigError.

    is_exact is true by default if exactness costs little, which is the case in 16 bits, and in
    float32 on a CPU with our kernels.
    """
    where = resolve_device(path, device)
    use_wanted_level()
    if where.type == "cpu":
        _warn_of_slow_kernels()
    precision = resolve_dtype(dtype, where)
    is_cheap = precision != torch.float32 or (where.type == "cpu" and operations.is_available)
    wants = is_cheap if is_exact is None else is_exact
    if not wants:
        reason = "not requested" if is_exact is False else "it would be slow in float32"
    else:
        reason = "no row depends on the others, unless a trial at loading finds otherwise"
    return Backend(where, precision, _kernels(where), wants, reason)


def _kernels(device: torch.device) -> str:
    if not operations.can_run_on(device):
        return "torch's"
    if device.type == "cuda":
        return "diffuspec's in Triton, cuBLAS for prompts"
    return f"diffuspec's for {level()}"


@functools.cache
def _warn_of_slow_kernels() -> None:
    """Warn, once per process, of kernels that take a multiple of the usual time."""
    if not operations.is_available:
        logger.warning(
            "models on a CPU are computed by torch, which takes about five times as long, because "
            "diffuspec's kernels were not compiled: reinstall it where there is a C++ compiler"
        )
    elif is_slow():
        logger.warning(
            "models on a CPU take about four times as long as with AVX2 or NEON: the kernels are "
            "those for %s",
            describe(),
        )


def resolve_device(path: Path, device: Device) -> torch.device:
    """Return the device on which to load a model. Raises ModelLoadError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"{path} cannot be loaded on cuda: no CUDA device is available")
    return torch.device(device)


def resolve_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """Return the type of weights on a device."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    resolved: torch.dtype = getattr(torch, dtype)
    return resolved

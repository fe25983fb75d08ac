"""The machine, versions and command of a measurement."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

_PACKAGES = ("diffuspec", "torch", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """The header of a result file."""

    cpu: str
    num_threads: int
    device: str  # the device of the models
    dtype: str
    platform: str
    python: str
    versions: dict[str, str]
    date: str  # ISO 8601, UTC
    command_line: str


def describe_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Describe this process and its machine."""
    return Machine(
        cpu=cpu_model(),
        num_threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(dtype).removeprefix("torch."),
        platform=platform.platform(),
        python=platform.python_version(),
        versions={
            name: found for name in _PACKAGES if (found := package_version(name)) is not None
        },
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command_line=_command_line(sys.argv),
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def gpus() -> list[str]:
    """Return the GPUs that torch can use; a line that says so if there are none."""
    if not torch.cuda.is_available():
        return [f"none that torch {torch.__version__} can use"]
    return [_describe_gpu(number) for number in range(torch.cuda.device_count())]


def _describe_gpu(number: int) -> str:
    found = torch.cuda.get_device_properties(number)
    memory = f"{found.total_memory / 2**30:.0f} GiB"
    return (
        f"{found.name}, {memory}, capability {found.major}.{found.minor}, CUDA {torch.version.cuda}"
    )


def package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command_line(arguments: Sequence[str]) -> str:
    return shlex.join([Path(arguments[0]).name, *arguments[1:]])

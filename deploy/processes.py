"""The processes of a service on this machine, found by its port."""

from __future__ import annotations

import contextlib

import psutil


def service_processes(port: int) -> set[psutil.Process]:
    """Return the processes that listen on a port and their children, or the Ray node's workers."""
    found = listeners(port)
    found += [one for process in found for one in process.children(recursive=True)]
    if (raylet := raylet_of(port)) is not None:
        found += [raylet, *raylet.children(recursive=True)]
    return {*found}


def raylet_of(port: int) -> psutil.Process | None:
    """Return the raylet of the node whose process listens on a port; None without Ray."""
    for process in listeners(port):
        for above in process.parents():
            if above.name() == "raylet":
                return above
    return None


def holder(port: int) -> str:
    """Describe which process listens on a port, and how to end it; "" if that is not visible.

    An HAProxy started by Serve outlives a cluster whose actors were killed, and answers 500.
    """
    for process in listeners(port):
        with contextlib.suppress(psutil.Error):
            name, parent = process.name(), process.parent()
            if name != "haproxy":
                return f"process {process.pid} ({name}) listens there"
            if parent is not None and _title(parent).startswith("ray::HAProxyManager"):
                return f"HAProxy of a service that runs (process {process.pid}) listens there"
            return (
                f"HAProxy of a service that has ended (process {process.pid}) listens there: "
                f"end it with `kill {process.pid}`"
            )
    return ""


def _title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def listeners(port: int) -> list[psutil.Process]:
    """Return the processes that listen on a TCP port."""
    found = []
    for one in psutil.net_connections("tcp"):
        if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN and one.pid:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                found.append(psutil.Process(one.pid))
    return found

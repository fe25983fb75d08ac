"""The processes of a service on this machine, found by its port."""

from __future__ import annotations

import contextlib

import psutil

from deploy import fork_server


def service_processes(port: int) -> set[psutil.Process]:
    """Return the processes that listen on a port and their children, or the Ray node's workers."""
    found = listeners(port)
    found += [one for process in found for one in process.children(recursive=True)]
    if (raylet := raylet_of(port)) is not None:
        found += [raylet, *workers_of(raylet)]
    return {*found}


def raylet_of(port: int) -> psutil.Process | None:
    """Return the raylet of the node whose process listens on a port; None without Ray."""
    for process in listeners(port):
        for above in process.parents():
            for one in (above, *_beside(above)):
                if one.name() == "raylet":
                    return one
    return None


def workers_of(raylet: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of a raylet, and the processes forked for it elsewhere."""
    roots = [raylet, *(one for one in _beside(raylet) if _is_fork_server(one))]
    return [one for root in roots for one in root.children(recursive=True)]


def _beside(process: psutil.Process) -> list[psutil.Process]:
    """Return the other processes of the command that started a raylet or a fork server."""
    command = process.parent()
    if command is None or not (process.name() == "raylet" or _is_fork_server(process)):
        return []
    return [one for one in command.children() if one != process]


def _is_fork_server(process: psutil.Process) -> bool:
    return fork_server.__name__ in process.cmdline()


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

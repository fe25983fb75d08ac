"""Machines that are namespaces of this one: network, processes, host name, /tmp and home apart.

Needs root, iproute2 and util-linux. Nothing outside the namespaces changes but for a bridge.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from diffuspec.core.errors import WorkerError

ROOT = Path(__file__).parents[2]
HOME = "/tmp/home"  # in each machine's own /tmp

_BRIDGE, _NETWORK = "dsbridge", "10.77.0"
_START_SECONDS = 60.0

# what process 1 of a machine does: its own /tmp, /dev/shm, host name and names of machines
_INIT = f"""
set -e
mount --make-rprivate /
mount -t tmpfs -o size=2G tmpfs /tmp
mount -t tmpfs -o size=2G tmpfs /dev/shm
mkdir -p {HOME}/.ray /tmp/etc
hostname "$1"
printf '127.0.0.1 localhost\\n%s %s\\n' "$2" "$1" >/tmp/etc/hosts
mount --bind /tmp/etc/hosts /etc/hosts
mount --bind /dev/null /etc/resolv.conf
ln -s {ROOT} {HOME}/diffuspec
ln -s {Path(sys.prefix)} {HOME}/venv
trap exit TERM
echo ready
while :; do sleep 3600 & wait; done
"""


class Machine:
    """One machine on the bridge. It is there until `end`."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = name, f"{_NETWORK}.{number}"
        self._namespace, self._link = f"ds-{name}", f"ds{number}"
        self._init: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Plug the machine in and start its process 1. Raises WorkerError."""
        inside = ["ip", "-n", self._namespace]
        _run("ip", "netns", "add", self._namespace)
        _run(*inside, "link", "set", "lo", "up")
        peer = ["type", "veth", "peer", "name", self._link, "netns", str(os.getpid())]
        _run(*inside, "link", "add", "eth0", *peer)
        _run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "route", "add", "default", "via", f"{_NETWORK}.254")
        _run("ip", "link", "set", self._link, "master", _BRIDGE, "up")
        apart = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
        command = ["ip", "netns", "exec", self._namespace, *apart, "--kill-child"]
        command += ["bash", "-c", _INIT, "init", self.name, self.address]
        self._init = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n":
            raise WorkerError(f"the machine {self.name} did not start: are you root?")

    @property
    def is_up(self) -> bool:
        return self._init is not None

    def command(self, line: str) -> list[str]:
        """Return the command that runs a line of bash on the machine, in its home."""
        assert self._init is not None
        [child] = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        inside = ["nsenter", "--target", child, "--mount", "--uts", "--ipc", "--net", "--pid"]
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        clean = ["env", "-i", f"HOME={HOME}", f"PATH={path}", "LANG=C.UTF-8", "USER=root"]
        return [*inside, *clean, "bash", "-c", f"cd ~; {line}"]

    def run(self, line: str, seconds: float = 120.0) -> str:
        """Run a line of bash; return its output. Raises WorkerError if it fails or is late."""
        return _run(*self.command(line), seconds=seconds)

    def cut(self) -> None:
        """Take the link down: neither end is told."""
        _run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Take the link up again."""
        _run("ip", "link", "set", self._link, "up")

    def end(self) -> None:
        """End all its processes at once, and unplug it, as when power fails."""
        if self._init is None:
            return
        with contextlib.suppress(WorkerError):
            self.cut()
        self._init.send_signal(signal.SIGKILL)  # and so its process 1, which ends all others
        self._init.wait()
        self._init = None
        with contextlib.suppress(WorkerError):
            _run("ip", "netns", "del", self._namespace)
        with contextlib.suppress(WorkerError):
            _run("ip", "link", "del", self._link)


@contextlib.contextmanager
def machines(names: Sequence[str]) -> Iterator[dict[str, Machine]]:
    """Start machines on a bridge that this process reaches, too; end them with the context."""
    made = {name: Machine(name, number) for number, name in enumerate(names, start=1)}
    with contextlib.ExitStack() as stack:
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", _BRIDGE)
        _run("ip", "addr", "add", f"{_NETWORK}.254/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        for machine in made.values():
            stack.callback(machine.end)
            machine.start()
        yield made


def _run(*command: str, seconds: float = _START_SECONDS) -> str:
    """Return a command's output. Raises WorkerError."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise WorkerError(f"{command[-1]:.200}: not done within {seconds:g} s") from error
    if ended.returncode:
        raise WorkerError(f"{command[-1]:.200}: {(ended.stderr or ended.stdout)[-2000:]}")
    return ended.stdout

"""Machines that are namespaces of this one: network, processes, host name, /tmp and home apart.

Nothing outside the namespaces changes but for a bridge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from diffuspec.core.errors import ConfigError, WorkerError

ROOT = Path(__file__).parents[2]
HOME = "/tmp/home"  # in each machine's own /tmp

_BRIDGE, _NETWORK = "dsbridge", "10.77.0"
BRIDGE_ADDRESS = f"{_NETWORK}.254"  # the address of this process
_START_SECONDS = 60.0
_PROGRAMS = {  # and their packages
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "curl": "curl",
}

# what process 1 of a machine does: its own disk, /tmp, /dev/shm, host name and names of machines
_INIT = f"""
set -e
mount --make-rprivate /
mount --bind "$3" /mnt
mount -t tmpfs -o size=2G tmpfs /tmp
mount -t tmpfs -o size=2G tmpfs /dev/shm
mkdir -p {HOME} /tmp/etc
mount --move /mnt {HOME}
mkdir -p {HOME}/.ray
hostname "$1"
printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' "$1" >/tmp/etc/hosts  # as Debian does
mount --bind /tmp/etc/hosts /etc/hosts
mount --bind /dev/null /etc/resolv.conf
ln -sfn {ROOT} {HOME}/diffuspec
ln -sfn {Path(sys.prefix)} {HOME}/venv
trap exit TERM
echo ready
while :; do sleep 3600 & wait; done
"""


class Machine:
    """One machine on the bridge: there from `start` to `end`, with the same disk each time."""

    def __init__(self, name: str, number: int, disk: Path) -> None:
        """`disk`: the directory that is its home."""
        self.name, self.address = name, f"{_NETWORK}.{number}"
        self._disk = disk
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
        _run(*inside, "route", "add", "default", "via", BRIDGE_ADDRESS)
        _run("ip", "link", "set", self._link, "master", _BRIDGE, "up")
        apart = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
        command = ["ip", "netns", "exec", self._namespace, *apart, "--kill-child"]
        command += ["bash", "-c", _INIT, "init", self.name, self.address, str(self._disk)]
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
    """Start machines on a bridge that this process reaches, too; end them with the context.

    Raises ConfigError if this machine lacks what that takes.
    """
    if os.geteuid():
        raise ConfigError("machines in namespaces need root: run it with sudo")
    need(_PROGRAMS)
    with contextlib.ExitStack() as stack:
        disks = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="machines")))
        made = {
            name: Machine(name, number, disks / name) for number, name in enumerate(names, start=1)
        }
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", _BRIDGE)
        _run("ip", "addr", "add", f"{BRIDGE_ADDRESS}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        for machine in made.values():
            (disks / machine.name).mkdir()
            stack.callback(machine.end)
            machine.start()
        yield made


def need(programs: Mapping[str, str]) -> None:
    """Raise ConfigError unless these programs are there; each with its package of Debian."""
    for program, package in programs.items():
        if shutil.which(program) is None:
            raise ConfigError(f"{program} is missing: apt-get install {package}")


def _run(*command: str, seconds: float = _START_SECONDS) -> str:
    """Return a command's output. Raises WorkerError."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise WorkerError(f"{command[-1]:.200}: not done within {seconds:g} s") from error
    if ended.returncode:
        raise WorkerError(f"{command[-1]:.200}: {(ended.stderr or ended.stdout)[-2000:]}")
    return ended.stdout

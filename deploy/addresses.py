"""Addresses given on the command line, checked before anything starts."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import typer

from actors.settings import DrafterProcess, PipelineConfig
from deploy.processes import holder
from diffuspec.core.addresses import LOOPBACK, MAX_PORT, parse_address
from diffuspec.core.errors import ConfigError

Role: TypeAlias = Literal["drafter", "path_scorer", "verifier", "coordinator"]

_NEEDED = {
    "verifier": (),
    "path_scorer": ("--verifier",),
    "drafter": ("--verifier", "--path-scorer"),
    "coordinator": ("--verifier",),
}
_OPTIONAL = {
    "verifier": ("--rank", "--meeting-point"),
    "path_scorer": (),
    "drafter": ("--name",),
    "coordinator": ("--drafter", "--metrics-port"),
}
_NO_PROCESS = "no drafter that is configured has its own process"
_REACH_SECONDS = 5.0


_Host = Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")]
_Port = Annotated[
    int,
    typer.Option(metavar="PORT", min=0, max=MAX_PORT, help="Port to listen on; 0: any free port."),
]
_Verifier = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="Address of the verifier (rank 0), for all other roles."
    ),
]
_PathScorer = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address of the path scorer, for a drafter.")
]
_Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="[NAME=]HOST:PORT",
        help="Address of a drafter, for the coordinator; repeatable. With its name if there "
        "are several.",
    ),
]
_Name = Annotated[
    str,
    typer.Option(metavar="NAME", help="Name of the drafter in the configuration, for a drafter."),
]
_Rank = Annotated[
    int, typer.Option(metavar="N", min=0, help="Tensor-parallel rank, for a verifier.")
]
_Meeting = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address where the ranks meet, for ranks above 0.")
]
_Metrics = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=1,
        max=MAX_PORT,
        help="Serve Prometheus metrics on loopback, for the coordinator.",
    ),
]


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address at which a role listens, and those of the roles it needs ("": none)."""

    host: _Host = LOOPBACK
    port: _Port = 0
    verifier: _Verifier = ""
    path_scorer: _PathScorer = ""
    drafters: _Drafters = None  # each prefixed with "NAME=" if several drafters have processes
    name: _Name = ""
    rank: _Rank = 0
    meeting_point: _Meeting = ""
    metrics_port: _Metrics = None  # port on loopback

    def check(self, role: Role, config: PipelineConfig) -> None:
        """Raise ConfigError for missing, malformed and unused addresses, and ports in use."""
        given = {
            "--verifier": self.verifier,
            "--path-scorer": self.path_scorer,
            "--drafter": self.drafters,
            "--name": self.name,
            "--rank": self.rank,
            "--meeting-point": self.meeting_point,
            "--metrics-port": self.metrics_port,
        }
        together = config.placement.together
        if together and role != "coordinator":
            raise ConfigError(f"placement.together: the {role} runs in the coordinator's process")
        needed: set[str] = set() if together else set(_NEEDED[role])
        if role == "drafter" and not self.served_drafter(config).needs_path_scorer:
            needed.discard("--path-scorer")
        for option, value in given.items():
            if not value and option in needed:
                raise ConfigError(f"--role {role} needs {option} HOST:PORT")
            if value and option not in needed.union(_OPTIONAL[role]):
                raise ConfigError(f"{option} has no effect on --role {role}")
        for option in ("--verifier", "--path-scorer", "--meeting-point"):
            if given[option]:
                parse_address(option, str(given[option]))
        if role == "coordinator":
            self.drafter_roles(config)
        if role == "verifier":
            self._check_rank(config.placement.verifier.tensor_parallel)
        self._check_ports()

    def served_drafter(self, config: PipelineConfig) -> DrafterProcess:
        """Return the drafter of a configuration that should be served. Raises ConfigError."""
        processes = {process.drafter: process for process in config.drafter_processes}
        if not processes:
            raise ConfigError(f"--role drafter: {_NO_PROCESS}")
        names = ", ".join(processes)
        if not self.name and len(processes) > 1:
            raise ConfigError(f"--role drafter needs --name, one of {names}")
        if self.name and self.name not in processes:
            raise ConfigError(f"--name must be one of {names}, got {self.name!r:.80}")
        return processes[self.name or names]

    def drafter_roles(self, config: PipelineConfig) -> dict[str, str]:
        """Return the addresses of drafters by role. Raises ConfigError."""
        processes = config.drafter_processes
        if self.drafters and not processes:
            raise ConfigError(f"--drafter has no effect: {_NO_PROCESS}")
        names = list(dict.fromkeys(process.drafter for process in processes))
        free: dict[str, list[str]] = {name: [] for name in names}
        for process in processes:
            free[process.drafter].append(process.role)
        found: dict[str, str] = {}
        addresses = self.drafters or ()
        for given in addresses:
            name, _, address = given.rpartition("=")
            parse_address("--drafter", address)
            if not name and len(names) == 1:
                [name] = names
            if name not in free:
                known = " or ".join(f"{one}=" for one in names)
                raise ConfigError(f"--drafter must begin with {known}, got {given!r:.80}")
            if free[name]:
                found[free[name].pop(0)] = address
        if len(found) != len(processes) or len(found) != len(addresses):
            wanted = ", ".join(process.role for process in processes)
            raise ConfigError(
                f"--drafter must be given once for each of the {len(processes)} processes of "
                f"drafters of the configuration ({wanted}), got {len(addresses)}"
            )
        return found

    def _check_rank(self, num_ranks: int) -> None:
        if self.rank >= num_ranks:
            raise ConfigError(
                f"--rank must be below placement.verifier.tensor_parallel, {num_ranks}, "
                f"got {self.rank}"
            )
        if self.rank and not self.meeting_point:
            raise ConfigError("--rank above 0 needs --meeting-point, which rank 0 prints")
        if not self.rank and self.meeting_point:
            raise ConfigError("--meeting-point needs --rank above 0: rank 0 prints its own")

    def _check_ports(self) -> None:
        check_listenable("--host and --port", self.host, self.port)
        if self.metrics_port is not None:
            check_listenable("--metrics-port", LOOPBACK, self.metrics_port)


def check_reachable(option: str, address: str) -> None:
    """Raise ConfigError unless a server accepts connections at an address."""
    host, port = parse_address(option, address)
    try:
        socket.create_connection((host, port), _REACH_SECONDS).close()
    except OSError as error:
        raise ConfigError(f"{option}: cannot reach {address}: {_reason(error)}") from error


def check_listenable(option: str, host: str, port: int) -> None:
    """Raise ConfigError unless a server can listen at a port of this machine (0: any port)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        who = holder(port) if error.errno == errno.EADDRINUSE else ""
        reason = f"{_reason(error)}{who and f'; {who}'}"
        raise ConfigError(f"{option}: cannot listen at {host}:{port}: {reason}") from error


def _reason(error: OSError) -> str:
    """Return the system's message, without the address that the socket module appends."""
    return (error.strerror or str(error)).partition(" (while")[0].lower()

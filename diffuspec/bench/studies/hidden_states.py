"""`python -m diffuspec.bench.studies.hidden_states`: the cost of sending hidden states.

A drafter in a process of its own reads hidden states of the target: verdicts bring those of the
committed rows, and the next draft request takes them on. Both calls go over gRPC on loopback here,
with rows and without, in turns, between roles that do nothing else than make bytes of tensors and
tensors of bytes. So the difference is what a step takes longer on this machine. The time on a
network between machines is computed from the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console

from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.command import Command
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import (
    EMPTY_DRAFT,
    EMPTY_TREE,
    Draft,
    DraftRequest,
    StateRows,
    StatesWanted,
    Verdict,
    VerifyRequest,
)
from diffuspec.models.hidden_states import state_rows, states_of
from diffuspec.rpc.client.roles import RemoteDrafter, RemoteVerifier
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import DrafterServicer, VerifierServicer

TARGETS = {"SmolLM2-135M": 576, "Qwen2.5-32B": 5120}  # columns of a hidden state
NUM_LAYERS = 5  # layers that the drafter reads
NUM_ROWS = (4, 160)  # rows of a step, and of a piece of a prompt
WIRES = (25e9, 100e9)  # bits per second
_NUM_CALLS = 200

_INFO = TargetInfo(vocab_size=1000, max_model_len=4096, max_sequences=1, eos_token_ids=())
_PREFIX = np.ones(200, np.int32)
_DRAFT = DraftRequest("a", _PREFIX, 8, "best_first", 16, 0.5, SamplingParams())
_VERIFY = VerifyRequest("a", _PREFIX, 1, EMPTY_TREE, SamplingParams())

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class TransferCost:
    """What the hidden states of some rows add to a step; medians over the calls."""

    target: str
    num_rows: int
    row_bytes: int
    draft_bytes: int  # added to a draft request
    verify_bytes: int  # added to a verdict
    draft_seconds: float
    verify_seconds: float

    def wire_seconds(self, bits_per_second: float) -> float:
        """Time of the bytes on a network, each way."""
        return 8 * self.draft_bytes / bits_per_second


class _Roles:
    """A drafter that reads the states it is sent, and a verifier that returns those wanted."""

    info = _INFO

    def __init__(self, layers: Sequence[torch.Tensor]) -> None:
        self._layers = layers

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for request in requests:
            if request.states is not None:
                states_of(request.states)
        return [EMPTY_DRAFT] * len(requests)

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        return [Verdict((1,), (), states=self._states(request)) for request in requests]

    async def release(self, request_id: str) -> None:
        pass

    def _states(self, request: VerifyRequest) -> StateRows | None:
        wanted = request.states_wanted
        if wanted is None:
            return None
        return state_rows(wanted.first, self._layers, StateRows.MAX_BYTES)


@contextlib.asynccontextmanager
async def _connected(roles: _Roles) -> AsyncIterator[tuple[RemoteDrafter, RemoteVerifier]]:
    security = Security(new_token())
    servicers = [DrafterServicer(roles, roles.info), VerifierServicer(roles)]
    async with RoleServer(servicers, security) as server:
        drafter = await RemoteDrafter.connect(server.address, security)
        verifier = await RemoteVerifier.connect(server.address, security)
        yield drafter, verifier
        await drafter.close()
        await verifier.close()


async def measure(target: str, num_columns: int, num_rows: int, num_calls: int) -> TransferCost:
    """Measure the calls of a drafter that reads NUM_LAYERS layers.

    num_columns: the width of a hidden state of the target; num_rows: tokens in each call.
    """
    rows = torch.randn(NUM_LAYERS, num_rows, num_columns).to(torch.bfloat16)
    states = state_rows(0, [*rows], StateRows.MAX_BYTES)
    assert states.dims[0] == num_rows, "they fit into one message"
    with_states = replace(_DRAFT, states=states)
    wanting = replace(_VERIFY, states_wanted=StatesWanted(tuple(range(NUM_LAYERS)), 0))
    async with _connected(_Roles([*rows])) as (drafter, verifier):
        draft_bytes, draft_seconds = await _added(
            lambda: drafter.draft([_DRAFT]),
            lambda: drafter.draft([with_states]),
            lambda: drafter.num_bytes_sent,
            num_calls,
        )
        verify_bytes, verify_seconds = await _added(
            lambda: verifier.verify([_VERIFY]),
            lambda: verifier.verify([wanting]),
            lambda: verifier.num_bytes_received,
            num_calls,
        )
    row_bytes = len(states.data) // num_rows
    sizes = row_bytes, draft_bytes, verify_bytes
    return TransferCost(target, num_rows, *sizes, draft_seconds, verify_seconds)


async def _added(
    plain: Callable[[], Awaitable[Any]],
    loaded: Callable[[], Awaitable[Any]],
    num_bytes: Callable[[], int],
    num_calls: int,
) -> tuple[int, float]:
    """Return by how much the second call exceeds the first, in bytes and in seconds."""
    sizes: list[list[int]] = [[], []]
    times: list[list[float]] = [[], []]
    await plain()
    for _ in range(num_calls):
        for kind, call in enumerate((plain, loaded)):
            before, started = num_bytes(), time.perf_counter()
            await call()
            times[kind].append(time.perf_counter() - started)
            sizes[kind].append(num_bytes() - before)
    bytes_added = round(median(sizes[1]) - median(sizes[0]))
    return bytes_added, median(times[1]) - median(times[0])


def study_transfers(num_calls: int = _NUM_CALLS) -> list[TransferCost]:
    """Measure every target with every number of rows."""
    cases = [(name, columns, rows) for name, columns in TARGETS.items() for rows in NUM_ROWS]
    return [asyncio.run(measure(*case, num_calls)) for case in cases]


def transfer_table(costs: Sequence[TransferCost]) -> TextTable:
    cells = [
        (
            cost.target,
            str(cost.num_rows),
            f"{cost.row_bytes / 1e3:.1f}",
            f"{cost.draft_bytes / 1e3:,.0f}",
            f"{1e3 * cost.draft_seconds:+.2f}",
            f"{1e3 * cost.verify_seconds:+.2f}",
            *(f"{1e6 * cost.wire_seconds(wire):,.0f}" for wire in WIRES),
        )
        for cost in costs
    ]
    wires = [f"us at {wire / 1e9:.0f} Gb/s" for wire in WIRES]
    columns = ("target", "rows", "kB a row", "kB a step", "draft ms", "verify ms", *wires)
    title = f"Hidden states of {NUM_LAYERS} layers, in bfloat16"
    return TextTable(title, columns, tuple(cells))


@app.command(cls=Command)
def main() -> None:
    """Measure what hidden states add to draft and verify calls; print a table."""
    print_tables([transfer_table(study_transfers())], [], Console())


if __name__ == "__main__":
    app()

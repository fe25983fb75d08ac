"""All attacks on one service, twice, while others ask; then its end under attack."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.abuse.attack import Answers, Attack, Attempt, Clients
from benchmarks.abuse.bystanders import Waits, bystanders
from benchmarks.abuse.connections import connection_attacks
from benchmarks.abuse.forms import form_attacks
from benchmarks.abuse.memory import memory_mib
from benchmarks.abuse.prompts import prompt_attacks
from benchmarks.abuse.refusals import refusals

NUM_PASSES = 2
_IDLE_SECONDS = 8.0  # without attacks, before each pass
_REST_SECONDS = 1.0  # after an attempt: helpers' children end


@dataclass(slots=True)
class Run:
    """The results of all attacks on one service."""

    name: str  # name of the service
    idle: Waits = field(default_factory=Waits)
    attempts: list[Attempt] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)  # before, and after each pass
    end_seconds: float | None = None  # from SIGTERM under attack to the end; None: not measured
    end_problem: str | None = None


def attacks(*, has_keys: bool = True, has_forms: bool = True) -> Sequence[Attack]:
    """Return all attacks, the slow ones at the end.

    has_keys: clients have different API keys. has_forms: the service can compile forms.
    """
    every = [*refusals(), *form_attacks(), *prompt_attacks(), *connection_attacks()]
    fitting = [
        attack
        for attack in every
        if (has_keys or not attack.needs_keys) and (has_forms or not attack.needs_forms)
    ]
    return sorted(fitting, key=lambda attack: attack.is_slow)


async def attack_twice(
    clients: Clients, chosen: Sequence[Attack], run: Run, say: Callable[[str], None]
) -> None:
    """Make all attempts of two passes. `say` takes the state of the run."""
    port = clients.attacker.port
    for number in range(NUM_PASSES):
        say("idle")
        async with bystanders(clients.other) as waits:
            await asyncio.sleep(_IDLE_SECONDS)
        run.idle.merge(waits)
        before = await asyncio.to_thread(memory_mib, port)
        if not run.memory_mib:
            run.memory_mib.append(before)
        for group in _groups(chosen):
            say(f"pass {number + 1}: {', '.join(attack.name for attack in group)}")
            attempts, before = await _attempt(clients, group, number, before)
            run.attempts += attempts
        run.memory_mib.append(before)


def _groups(chosen: Sequence[Attack]) -> list[list[Attack]]:
    """Return the attacks that are made at once: each alone, and all slow ones together."""
    slow = [attack for attack in chosen if attack.is_slow]
    return [[attack] for attack in chosen if not attack.is_slow] + ([slow] if slow else [])


async def _attempt(
    clients: Clients, group: Sequence[Attack], number: int, before: float
) -> tuple[list[Attempt], float]:
    """Make attacks at once; return the attempts, and the MiB of the service afterwards."""

    async def timed(attack: Attack) -> tuple[Answers, float]:
        began = time.monotonic()
        try:
            answers = await attack.send(clients, number)
        except Exception as error:  # shown in the table as an unexpected answer
            answers = [repr(error)]
        return answers, time.monotonic() - began

    async with bystanders(clients.other) as waits:
        results = await asyncio.gather(*(timed(attack) for attack in group))
    await clients.other.until_idle()
    await asyncio.sleep(_REST_SECONDS)
    after = await asyncio.to_thread(memory_mib, clients.attacker.port)
    made = [
        Attempt(attack, number, answers, seconds, waits, after - before)
        for attack, (answers, seconds) in zip(group, results, strict=True)
    ]
    return made, after


@contextlib.asynccontextmanager
async def under_attack(clients: Clients, chosen: Sequence[Attack]) -> AsyncIterator[None]:
    """Enter soon after attacks have begun; at the end cancel them and wait for them."""
    number = NUM_PASSES  # no pass had this number, so its forms are new
    sending = [asyncio.ensure_future(attack.send(clients, number)) for attack in chosen]
    await asyncio.sleep(_REST_SECONDS)
    try:
        yield
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

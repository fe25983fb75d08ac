"""However workers fail and clients leave, every request ends once, with the right tokens."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.core.errors import DiffuspecError, DrafterError, VerifierError
from diffuspec.core.params import SamplingParams
from tests.support.fakes import (
    FAKE_TARGET,
    HONEST,
    INVALID,
    FakeDrafter,
    FakeVerifier,
    mixed,
    oracle_of,
)
from tests.support.stage import FIXED, UNAVAILABLE, Stage, on_stage, pool_of, until
from tests.support.virtual_time import run_in_virtual_time

Ending = Literal["finished", "closed", "failed"]

pytestmark = pytest.mark.timeout(300)


class Faults:
    """Makes calls of workers slow, and loses some of them, all by one seed."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self._rate = rate

    def apply(self, worker: Any, call: str, errors: Sequence[Exception | None]) -> None:
        """Lose calls before the work or after it; None: the call hangs, or returns too little."""
        inner = getattr(worker, call)

        async def attempt(requests: Sequence[Any]) -> Any:
            await self.pause()
            before, after = self._fault(errors), self._fault(errors)
            if before == "miscount":
                await asyncio.sleep(100)
            if isinstance(before, Exception):
                raise before
            answers = await inner(requests)
            await self.pause()
            if isinstance(after, Exception):
                raise after
            return answers[:-1] if after == "miscount" else answers

        setattr(worker, call, attempt)

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.01, 0.1]))

    def _fault(self, errors: Sequence[Exception | None]) -> Exception | str | None:
        if self.rng.random() >= self._rate:
            return None
        return self.rng.choice(errors) or "miscount"


def make_workers(
    max_sequences: int, num_drafters: int, faults: Faults, seed: int
) -> tuple[FakeVerifier, list[FakeDrafter]]:
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafters = [
        FakeDrafter(oracle_of(verifier), mixed([*HONEST, *INVALID]), seed)
        for _ in range(num_drafters)
    ]
    errors = (UNAVAILABLE, UNAVAILABLE, VerifierError("not finite"), RuntimeError("a bug"))
    faults.apply(verifier, "verify", errors)
    for drafter in drafters:
        faults.apply(drafter, "draft", (DrafterError("gone"), ValueError("a bug"), None))
    return verifier, drafters


async def run_request(stage: Stage, number: int, faults: Faults) -> Ending:
    """Run a request whose client may leave; its tokens must be those of plain decoding."""
    await asyncio.sleep(faults.rng.random())
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    prompt = [number, 7] * faults.rng.choice([1, 20])
    plain = stage.plain(prompt, sampling)
    committed = plain[: faults.rng.choice([0, 0, 9])]
    leaves_after = faults.rng.choice([None, None, None, 1, 3])
    speculation = replace(FIXED, num_outcomes=faults.rng.choice([0, 2, 16, "auto"]))
    tokens, num_outputs = list(committed), 0
    try:
        stream = stage.stream(prompt, sampling, speculation, str(number), committed)
        async with aclosing(stream):
            async for output in stream:
                tokens += output.token_ids
                num_outputs += 1
                if num_outputs == leaves_after and output.finish_reason is None:
                    return "closed"
    except DiffuspecError:
        return "failed"
    finally:
        assert tokens == plain[: len(tokens)]
    assert tokens == plain
    return "finished"


async def disturb(stage: Stage, drafters: Sequence[FakeDrafter], faults: Faults) -> None:
    """Let drafters leave and join again, and cancel requests by their ids."""
    for number in range(100):
        await asyncio.sleep(faults.rng.random())
        drafter = faults.rng.choice(drafters)
        if faults.rng.random() < 0.5:
            stage.drafter.remove(drafter)
            stage.drafter.add(drafter, f"drafter {number}")
        elif faults.rng.random() < 0.2:
            stage.coordinator.cancel(str(faults.rng.randrange(12)))


def check_endings(stage: Stage, endings: Sequence[Ending]) -> None:
    """Every request counts once: as finished, as cancelled or as failed."""
    counts: Counter[str] = Counter()
    for metric in stage.coordinator.metrics.registry.collect():
        for sample in metric.samples:
            counts[sample.name.removeprefix("diffuspec_")] += int(sample.value)
    assert counts["request_success_total"] >= endings.count("finished")
    ended = ("request_success_total", "request_cancelled_total", "request_failed_total")
    assert sum(counts[name] for name in ended) == len(endings)
    assert counts["request_refused_total"] == 0
    assert set(Counter(stage.verifier.released).values()) <= {1}
    asked = {request.request_id for batch in stage.verifier.batches for request in batch}
    assert asked <= set(stage.verifier.released)
    assert stage.leftovers() == {}


async def run_requests(
    max_sequences: int, num_drafters: int, overlap: bool, faults: Faults, seed: int, is_cut: bool
) -> None:
    verifier, drafters = make_workers(max_sequences, num_drafters, faults, seed)
    async with on_stage(
        pool_of(drafters),
        verifier=verifier,
        overlap=overlap,
        prefill_chunk_tokens=16,
        max_draft_seconds=1.5,
        max_verifier_outage_seconds=1.0,
    ) as stage:
        running = asyncio.gather(*(run_request(stage, n, faults) for n in range(12)))
        disturbing = asyncio.create_task(disturb(stage, drafters, faults))
        if is_cut:
            await asyncio.sleep(2.0)
        else:
            await running
            disturbing.cancel()
            await until(lambda: not stage.leftovers())
    disturbing.cancel()
    check_endings(stage, await running)


@settings(max_examples=40)
@given(
    max_sequences=st.integers(1, 4),
    num_drafters=st.integers(1, 3),
    overlap=st.booleans(),
    rate=st.sampled_from([0.01, 0.05, 0.2]),
    seed=st.integers(0, 1000),
    is_cut=st.booleans(),
)
def test_every_request_ends_once_and_leaves_nothing_behind(
    max_sequences: int, num_drafters: int, overlap: bool, rate: float, seed: int, is_cut: bool
) -> None:
    logging.disable(logging.CRITICAL)
    try:
        with patch("diffuspec.scheduler.calls._PAUSES", (0.1, 1.0)):
            faults = Faults(rate, seed)
            run_in_virtual_time(
                run_requests(max_sequences, num_drafters, overlap, faults, seed, is_cut)
            )
    finally:
        logging.disable(logging.NOTSET)

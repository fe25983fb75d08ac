"""The way of a batch through the verifier, when the verifier cannot do all of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.core.types import Verdict, VerifyRequest
from tests.support.stage import on_stage, until

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    "error", [VerifierError("not finite"), InvalidRequestError("no"), RuntimeError("a bug")]
)
@pytest.mark.parametrize("bad", [(2,), (0, 3)])
@pytest.mark.parametrize("drafter", [None, "sometimes_right"])
async def test_what_the_verifier_cannot_do_ends_alone(error, bad, drafter, caplog):
    caplog.set_level(logging.CRITICAL)
    async with on_stage(drafter, max_sequences=4) as stage:
        verify = stage.verifier.verify

        async def choosy(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            verdicts = await verify(requests)
            if any(r.prefix[0] in bad and len(r.prefix) > 4 for r in requests):
                raise error
            return verdicts

        stage.verifier.verify = choosy  # type: ignore[method-assign]
        tasks = [stage.start([n, 7]) for n in range(4)]
        await asyncio.wait(tasks)
        for n, task in enumerate(tasks):
            if n in bad:
                with pytest.raises((VerifierError, InvalidRequestError), match=str(error)):
                    await task
            else:
                assert await task == stage.plain([n, 7])
        assert max(map(len, stage.verifier.batches)) == 4
        await until(lambda: not stage.verifier.held)

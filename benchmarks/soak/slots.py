"""Whether a service that is at rest can still decode as many requests at once as it says."""

from __future__ import annotations

import asyncio
import contextlib
import time

from diffuspec.bench.http_client import HttpClient
from diffuspec.core.errors import WorkerError

_MAX_SECONDS = 60.0
_LONG = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0,
    "ignore_eos": True,
    "max_tokens": 200,
    "stream": True,
    "return_token_ids": True,
}


async def lost_slots(http: HttpClient, num_slots: int) -> str | None:
    """Ask for long answers in all slots at once; return what is wrong, None if nothing is.

    Each answer must begin before any of them has ended.
    """
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            times = await asyncio.gather(*(_first_and_last(http) for _ in range(num_slots)))
    except TimeoutError:
        return f"{num_slots} requests at once are not answered within {_MAX_SECONDS:.0f} s"
    except WorkerError as error:
        return f"a request at rest fails: {error}"
    first_end = min(last for _, last in times)
    late = sum(first > first_end for first, _ in times)
    return f"{late} of {num_slots} requests waited for another's end" if late else None


async def _first_and_last(http: HttpClient) -> tuple[float, float]:
    """Return the times of the first and the last token of an answer."""
    times: list[float] = []
    async with contextlib.aclosing(http.chunks(_LONG)) as chunks:
        async for chunk in chunks:
            if any(choice.get("token_ids") for choice in chunk["choices"]):
                times.append(time.monotonic())
    if not times:
        raise WorkerError("an answer without tokens")
    return times[0], times[-1]

"""Sends a running service random forms of answers, and checks that it survives all of them.

    diffuspec serve --port 8000 &
    python -m benchmarks.fuzz_forms http://127.0.0.1:8000           20,000 forms
    python -m benchmarks.fuzz_forms http://127.0.0.1:8000 --forms 2000 --seed 7

Each form is answered or refused (400); `/health` is asked all the time and must say 200.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import httpx2
import typer
from rich.console import Console

from benchmarks.odd_forms import Forms
from diffuspec.cli.command import Command

_CLIENTS = 8
_SECONDS = 120.0  # for one request
_HEALTH_SECONDS = 0.2  # between two requests
_MAX_SHOWN = 10  # failures printed
_MAX_CHARACTERS = 500  # a printed form is cut to these
_NUM_WORDS = 6  # last words of a refusal by which refusals are counted
_CRASHES = "the library that compiles it fails"
_RETRIED = (429, 503)
_FINE = (200, 400)
_MAX_ATTEMPTS = 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(slots=True)
class Results:
    """The results of a run."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)  # forms that end a helper's child
    slowest_seconds: float = 0.0
    num_healthy: int = 0


class Fuzz:
    """Forms on their way to a service, several at a time."""

    def __init__(self, client: httpx2.AsyncClient, forms: Forms, num_forms: int) -> None:
        self._client = client
        self._forms = forms
        self._num_left = num_forms
        self.results = Results()

    async def run(self) -> None:
        """Send all forms, while the health of the service is asked."""
        watching = asyncio.create_task(self._watch())
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._send_all())
        watching.cancel()
        await asyncio.wait([watching])

    async def _send_all(self) -> None:
        while self._num_left > 0:
            self._num_left -= 1
            form = self._forms.form()
            began = time.monotonic()
            await self._send(form)
            self.results.slowest_seconds = max(
                self.results.slowest_seconds, time.monotonic() - began
            )

    async def _send(self, form: str) -> None:
        data = f'{{"prompt": "a", "max_tokens": 4, "temperature": 1, "seed": 1, {form}}}'.encode()
        for _ in range(_MAX_ATTEMPTS):
            try:
                reply = await self._client.post("/v1/completions", content=data)
            except httpx2.HTTPError as error:
                self._fail(form, repr(error))
                return
            self.results.statuses[_summary(reply)] += 1
            if reply.status_code not in _RETRIED:
                break
            await asyncio.sleep(1)
        if _CRASHES in reply.text:
            self.results.crashes.append(form)
        if reply.status_code not in _FINE:
            self._fail(form, f"{reply.status_code}: {reply.text[:200]}")

    async def _watch(self) -> None:
        while True:
            try:
                reply = await self._client.get("/health")
            except httpx2.HTTPError as error:
                self._fail("", f"/health: {error!r}")
            else:
                self.results.num_healthy += reply.status_code == 200
                if reply.status_code != 200:
                    self._fail("", f"/health: {reply.status_code}")
            await asyncio.sleep(_HEALTH_SECONDS)

    def _fail(self, form: str, reason: str) -> None:
        self.results.failures.append(f"{reason} after {form[:_MAX_CHARACTERS]}")


def _summary(reply: httpx2.Response) -> str:
    """Return a reply's status, and the last words of a refusal, without numbers and places."""
    if reply.status_code == 200:
        return "200"
    words = [word for word in reply.json()["error"]["message"].split() if "/" not in word]
    return f"{reply.status_code} {re.sub('[0-9]+', 'N', ' '.join(words[-_NUM_WORDS:]))}"


async def _fuzz(url: str, num_forms: int, seed: int, api_key: str | None) -> Results:
    headers = {"content-type": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=_SECONDS, trust_env=False
    ) as client:
        fuzz = Fuzz(client, Forms(seed), num_forms)
        await fuzz.run()
        return fuzz.results


@app.command(cls=Command)
def main(
    url: Annotated[str, typer.Argument(help="URL of the service, without /v1.")],
    forms: Annotated[int, typer.Option(min=1, help="Number of forms.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the forms.")] = 0,
    api_key: Annotated[str | None, typer.Option(help="API key of the service.")] = None,
) -> None:
    """Send random forms; print how many were answered or refused, and why.

    Exit status 1: the service failed at a form.
    """
    results = asyncio.run(_fuzz(url, forms, seed, api_key))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for summary, count in results.statuses.most_common():
        console.print(f"{count:7,}  {summary}")
    console.print(
        f"/health was 200 {results.num_healthy:,} times; the slowest form took "
        f"{results.slowest_seconds:.1f} s"
    )
    for form in results.crashes[:_MAX_SHOWN]:
        console.print(f"ended the process that tried it: {form[:_MAX_CHARACTERS]}")
    for failure in results.failures[:_MAX_SHOWN]:
        console.print(f"failed: {failure}")
    raise typer.Exit(int(bool(results.failures)))


if __name__ == "__main__":
    app()

"""Timed calls of a target and a drafter: plain steps, verifications, drafts and prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Literal, TypeAlias

import torch

from diffuspec.algorithm.draft_tree import chain
from diffuspec.bench.sizes.models import SizedDrafter, SizedTarget
from diffuspec.bench.sizes.timing import Times
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest, TokenIds, VerifyRequest

Kind: TypeAlias = Literal["verify", "sampled", "prompt", "draft", "refresh"]

_GREEDY, _SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=7)


@dataclass(frozen=True, slots=True)
class Timed:
    """A kind of call at one size. Verifying 0 drafted tokens is a plain step."""

    kind: Kind
    num_requests: int
    num_prefix_tokens: int
    num_drafted: int  # tokens of each request
    seconds: float  # median
    least_seconds: float

    @property
    def num_rows(self) -> int:
        """Rows of each request."""
        return self.num_prefix_tokens if self.kind == "prompt" else 1 + self.num_drafted


class Calls:
    """Makes calls of a target and of its drafter, through their interfaces, and times them."""

    def __init__(self, target: SizedTarget, drafter: SizedDrafter | None, seconds: float) -> None:
        """seconds: how long to repeat a call."""
        self._target, self._drafter, self._seconds = target, drafter, seconds
        self._loop = asyncio.Runner()

    def close(self) -> None:
        self._loop.close()

    def release(self, num_requests: int) -> None:
        """Free what is cached for the requests of calls so far."""
        for number in range(num_requests):
            self._target.target.release_here(str(number))
            if self._drafter is not None:
                self._loop.run(self._drafter.model.release(str(number)))

    def verify(
        self, num_requests: int, num_prefix_tokens: int, num_drafted: int, *, samples: bool = False
    ) -> Timed:
        """Time a verification of chains behind cached prefixes."""
        call = self.verification(num_requests, num_prefix_tokens, num_drafted, samples=samples)
        call()  # reads the prefixes
        times = Times.of(repeat(call), self._seconds)
        kind: Kind = "sampled" if samples else "verify"
        return Timed(kind, num_requests, num_prefix_tokens, num_drafted, *times)

    def verification(
        self, num_requests: int, num_prefix_tokens: int, num_drafted: int, *, samples: bool = False
    ) -> Callable[[], object]:
        """Return the call that `verify` times."""
        target, sampling = self._target.target, _SAMPLED if samples else _GREEDY
        tree = chain([1] * num_drafted)
        prompts = [self._target.prompt(num_prefix_tokens, n) for n in range(num_requests)]
        requests = [
            VerifyRequest(str(number), prompt, len(prompt), tree, sampling)
            for number, prompt in enumerate(prompts)
        ]
        admitted = [None] * num_requests
        return lambda: target.verify_here(requests, admitted)

    def prompt(self, size: int) -> Timed:
        """Time the reading of a prompt of which nothing is cached, and its first token."""

        def calls() -> Iterator[Callable[[], object]]:
            for number in count(1000):  # others than those of verifications
                prompt = self._target.prompt(size, number)
                request = VerifyRequest("prompt", prompt, size, chain([]), _GREEDY)
                yield lambda: self._target.target.verify_here([request], [None])  # noqa: B023
                self._target.target.release_here("prompt")

        times = Times.of(calls(), self._seconds, least=2)
        return Timed("prompt", 1, size, 0, *times)

    def draft(self, num_requests: int, num_prefix_tokens: int, num_drafted: int) -> Timed:
        """Time a draft behind cached prefixes."""
        call = self.drafting(num_requests, num_prefix_tokens, num_drafted)
        call()  # reads the prefixes
        times = Times.of(repeat(call), self._seconds)
        return Timed("draft", num_requests, num_prefix_tokens, num_drafted, *times)

    def drafting(
        self, num_requests: int, num_prefix_tokens: int, num_drafted: int
    ) -> Callable[[], object]:
        """Return the call that `draft` times."""
        prompts = [self._target.prompt(num_prefix_tokens, n) for n in range(num_requests)]
        requests = [_draft_of(n, prompt, num_drafted) for n, prompt in enumerate(prompts)]
        return lambda: self._draft(requests)

    def refresh(self, num_prefix_tokens: int, num_drafted: int) -> Timed:
        """Time drafts that refresh a prefix: each comes `refresh_every` tokens after the last."""
        assert self._drafter is not None and self._drafter.refresh_every is not None
        step, longest = self._drafter.refresh_every, self._target.target.info.max_model_len
        first = min(num_prefix_tokens, longest - 4 * step)
        text = self._target.prompt(longest)

        def calls() -> Iterator[Callable[[], object]]:
            while True:
                for end in range(first, longest, step):
                    request = _draft_of(0, text[:end], num_drafted)
                    yield lambda: self._draft([request])  # noqa: B023
                self.release(1)
                self._draft([_draft_of(0, text[: first - step], num_drafted)])

        self._draft([_draft_of(0, text[: first - step], num_drafted)])
        times = Times.of(calls(), self._seconds, least=2)
        self.release(1)
        return Timed("refresh", 1, num_prefix_tokens, num_drafted, *times)

    @torch.inference_mode()
    def _draft(self, requests: list[DraftRequest]) -> None:
        """Draft; a drafter that reads prefixes in pieces is called until it has read them."""
        assert self._drafter is not None
        while not all(
            lattice.num_positions
            for lattice in self._loop.run(self._drafter.model.lattices(requests))
        ):
            pass


def _draft_of(number: int, prefix: TokenIds, num_drafted: int) -> DraftRequest:
    usual = SpeculationParams()
    how = usual.tree_shape, usual.max_nodes, 0.5, _GREEDY
    return DraftRequest(str(number), prefix, num_drafted, *how, num_prompt_tokens=len(prefix))

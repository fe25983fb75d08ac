"""Fakes of the two roles that the coordinator knows, and strategies that draft well or badly.

The fake target's next token is a hash of the tokens before it. It has no weights, but keeps the
verifier's contract to the letter, and fails the test when the caller breaks the caller's side.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from diffuspec.algorithm.acceptance import accept
from diffuspec.algorithm.draft_tree import chain, validate
from diffuspec.core.interfaces import Observation, Observer, TargetInfo
from diffuspec.core.pages import PageUse, num_pages_of
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import (
    EMPTY_TREE,
    Draft,
    DraftRequest,
    DraftTree,
    TokenIds,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
)

EOS = 17  # of the random checkpoints too
FAKE_TARGET = TargetInfo(vocab_size=50, max_model_len=512, max_sequences=4, eos_token_ids=(EOS,))


class Gate:
    """Lets calls pass while it is open; tells when a call waits at it."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._arrived = asyncio.Event()

    def open(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        self._is_open.clear()
        self._arrived.clear()

    async def arrival(self) -> None:
        """Wait until a call waits at the closed gate."""
        await self._arrived.wait()

    async def passage(self) -> None:
        await asyncio.sleep(0)
        if not self._is_open.is_set():
            self._arrived.set()
        await self._is_open.wait()


class FakeVerifier:
    """A `Verifier`: the next token is a hash of the prefix and, with a temperature, the seed."""

    model = None
    num_ranks = 1

    def __init__(self, info: TargetInfo = FAKE_TARGET) -> None:
        self.info = info
        self.gate = Gate()
        self.error: BaseException | None = None
        self.release_error: Exception | None = None
        self.batches: list[list[VerifyRequest]] = []  # as far as prefixes were read
        self.num_read: dict[str, int] = {}  # tokens of requests' prefixes
        self._num_calls = 0  # calls in progress
        self._unread: set[str] = set()  # ids of requests that are released after the call
        self.held: set[str] = set()  # ids of requests verified and not released yet
        self.released: list[str] = []  # ids, one for each call
        self.observers: list[Observer] = []

    def add_observer(self, observer: Observer) -> None:
        self.observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        self.observers.remove(observer)

    def next_token(self, prefix: Sequence[int] | TokenIds, sampling: SamplingParams) -> int:
        return self._hash(prefix, sampling) % self.info.vocab_size

    def continuation(
        self, prefix: Sequence[int] | TokenIds, num_tokens: int, sampling: SamplingParams
    ) -> list[int]:
        """Return the next tokens, past EOS too; each of them adds to the hash of those before."""
        seed, output = _seed(sampling), list[int]()
        checksum = zlib.crc32(_data(prefix))
        for _ in range(num_tokens):
            output.append(zlib.crc32(seed, checksum) % self.info.vocab_size)
            checksum = zlib.crc32(_data(output[-1:]), checksum)
        return output

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        ids = [request.request_id for request in requests]
        assert 1 <= len(ids) <= self.info.max_sequences and len(set(ids)) == len(ids)
        read = [one.up_to_limit(self.num_read.get(one.request_id, 0)) for one in requests]
        self.batches.append(read)
        self.held.update(ids)
        self._check_pages(read)
        self._num_calls += 1
        try:
            await self.gate.passage()
            if self.error is not None:
                raise self.error
            return self._verdicts(requests, read)
        finally:
            self._num_calls -= 1
            self._drop_unread()

    def _verdicts(
        self, requests: Sequence[VerifyRequest], read: Sequence[VerifyRequest]
    ) -> list[Verdict]:
        verdicts = []
        for request, one in zip(requests, read, strict=True):
            verdict, num_unread = self._verify(one), len(request.prefix) - len(one.prefix)
            self.num_read[one.request_id] = len(one.prefix) + verdict.num_accepted_tokens
            verdicts.append(replace(verdict, num_unread_tokens=num_unread))
        pages = None if self.info.num_pages is None else PageUse(self._num_free_pages(), 0)
        return [replace(verdict, pages=pages) for verdict in verdicts]

    async def release(self, request_id: str) -> None:
        self._unread.add(request_id)
        self._drop_unread()
        await asyncio.sleep(0)
        self.held.discard(request_id)
        self.released.append(request_id)
        if self.release_error is not None:
            raise self.release_error

    def _drop_unread(self) -> None:
        """Forget prefixes of released requests, as a worker does between two calls."""
        if not self._num_calls:
            for request_id in self._unread:
                self.num_read.pop(request_id, None)
            self._unread.clear()

    def _num_free_pages(self) -> int:
        assert self.info.num_pages is not None
        return self.info.num_pages - sum(map(num_pages_of, self.num_read.values()))

    def _check_pages(self, requests: Sequence[VerifyRequest]) -> None:
        """Fail if the batch takes more pages than there are."""
        if self.info.num_pages is not None:
            taken = 0
            for one in requests:
                taken += num_pages_of(len(one.prefix) + one.tree.num_nodes)
                taken -= num_pages_of(self.num_read.get(one.request_id, 0))
            assert taken <= self._num_free_pages(), "the batch takes pages that are in use"

    def _verify(self, request: VerifyRequest) -> Verdict:
        prefix, tree = request.prefix.tolist(), request.tree
        assert 1 <= len(prefix) <= self.info.max_model_len
        assert 1 <= request.num_prompt_tokens <= len(prefix)
        assert tree.num_nodes <= self.info.max_tree_nodes
        assert max([*prefix, *tree.token_ids]) < self.info.vocab_size
        validate(tree)
        histories = [prefix]
        for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
            histories.append([*histories[parent + 1], token_id])
        tokens = [self.next_token(history, request.sampling) for history in histories]
        result = accept(tree, tokens)
        for observer in self.observers:
            if observer.is_active:
                top = self._likeliest(tokens, observer.num_top)
                observer.observe(
                    [Observation(request.prefix, tree, tokens, result.accepted_nodes, top)]
                )
        logprobs = None
        if request.sampling.logprobs is not None:
            path = [histories[node + 1] for node in (-1, *result.accepted_nodes)]
            logprobs = tuple(self._logprobs(history, request.sampling) for history in path)
        return Verdict(result.token_ids, result.accepted_nodes, logprobs)

    def _likeliest(self, tokens: Sequence[int], num_top: int) -> TokenIds:
        """Return the token after each row, and then the ids above it."""
        ids = np.array(tokens)[:, None] + np.arange(num_top)[None]
        return (ids % self.info.vocab_size).astype(np.int32)

    def _logprobs(self, prefix: Sequence[int], sampling: SamplingParams) -> TokenLogprobs:
        return TokenLogprobs(-(self._hash(prefix, sampling) % 997) / 100, ())

    def _hash(self, prefix: Sequence[int] | TokenIds, sampling: SamplingParams) -> int:
        return zlib.crc32(_seed(sampling), zlib.crc32(_data(prefix)))


def _data(token_ids: Sequence[int] | TokenIds) -> bytes:
    return np.asarray(token_ids, np.int32).tobytes()


def _seed(sampling: SamplingParams) -> bytes:
    return b"" if sampling.is_greedy else f"{sampling.seed} {sampling.temperature}".encode()


def decode_plainly(
    verifier: FakeVerifier, prompt: Sequence[int], sampling: SamplingParams
) -> list[int]:
    """Return the reference answer: one token at a time, up to EOS, a stop token or max_tokens."""
    stops = {
        *sampling.stop_token_ids,
        *(() if sampling.ignore_eos else verifier.info.eos_token_ids),
    }
    output: list[int] = []
    while len(output) < sampling.max_tokens:
        output.append(verifier.next_token([*prompt, *output], sampling))
        if output[-1] in stops:
            break
    return output


# ---- drafters

Oracle = Callable[[DraftRequest, int], list[int]]
"""Returns the target's next tokens after a request's prefix: the number asked, or fewer."""

Strategy = Callable[[random.Random, DraftRequest, list[int]], Draft]
"""Makes a draft, given the target's next tokens."""


def make_draft(tree: DraftTree, rng: random.Random | None = None) -> Draft:
    """Return a draft of a tree with random confidences."""
    rng = rng or random.Random(0)
    confidences = tuple(-rng.expovariate(2.0) for _ in tree.token_ids)
    return Draft(tree, confidences, num_tokens_before_eos=tree.num_nodes)


def never_right(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(chain([_other(token) for token in truth]), rng)


def always_right(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(chain(truth), rng)


def right_and_sure(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return Draft(chain(truth), (-0.01,) * len(truth), len(truth))


def sometimes_right(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(chain([t if rng.random() < 0.85 else _other(t) for t in truth]), rng)


def eos_in_the_middle(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    middle = len(truth) // 2
    return make_draft(chain([*truth[:middle], EOS, *truth[middle:]]), rng)


def right_branch_is_late(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    """At every depth, put a wrong sibling with a child before the right token."""
    tokens: list[int] = []
    parents: list[int] = []
    parent = -1
    for token in truth[: request.max_nodes // 3]:
        wrong = len(tokens)
        tokens += [_other(token), token, token]
        parents += [parent, wrong, parent]
        parent = wrong + 2
    return make_draft(DraftTree(tuple(tokens), tuple(parents)), rng)


def bushy(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    """Hide the right tokens, with gaps, in a random tree over few token ids."""
    nodes: dict[tuple[int, int], int] = {}
    parents = [-1]
    for _ in range(request.max_nodes // 2):
        parent = rng.choice(parents[-6:])
        nodes.setdefault((parent, rng.randrange(1, 6)), len(nodes))
        parents.append(len(nodes) - 1)
    parent = -1
    for token in truth[: request.max_nodes // 2]:
        if rng.random() < 0.1:
            break
        parent = nodes.setdefault((parent, token), len(nodes))
    tree = DraftTree(tuple(t for _, t in nodes), tuple(p for p, _ in nodes))
    return make_draft(tree, rng)


def wrong_lengths(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    """Draft nothing, one token, or three times the length asked for, right as far as known."""
    length = rng.choice([0, 1, 3 * request.num_draft_tokens])
    return make_draft(chain((truth + [1] * length)[:length]), rng)


def too_many_nodes(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(DraftTree(tuple(range(300)), (-1,) * 300), rng)


def unknown_ids(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(chain([*truth, 10**6]), rng)


def negative_ids(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(chain([-1, *truth]), rng)


def broken_parents(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(DraftTree((1, 2), (1, -1)), rng)


def missing_confidences(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return Draft(chain(truth), (), len(truth))


def empty(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return make_draft(EMPTY_TREE, rng)


def lies_about_eos(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    return Draft(chain(truth), (0.0,) * len(truth), num_tokens_before_eos=rng.choice([-5, 0, 999]))


HONEST: tuple[Strategy, ...] = (
    never_right,
    always_right,
    sometimes_right,
    eos_in_the_middle,
    right_branch_is_late,
    bushy,
)
DISHONEST: tuple[Strategy, ...] = (wrong_lengths, empty, lies_about_eos)
INVALID: tuple[Strategy, ...] = (
    too_many_nodes,
    unknown_ids,
    negative_ids,
    broken_parents,
    missing_confidences,
)


def mixed(strategies: Sequence[Strategy]) -> Strategy:
    """Give each request the strategy of its number, which its id begins with."""

    def draft(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
        number = int(request.request_id.split("-")[0])
        return strategies[number % len(strategies)](rng, request, truth)

    return draft


def _other(token: int) -> int:
    """Return a wrong token, never EOS."""
    return 2 if token == 1 else 1


class FakeDrafter:
    """A `Drafter` that knows the target's next tokens and drafts by a strategy.

    `hit_rate` is the share of nodes whose alternatives begin with the target's own token; at the
    others it is not among them.
    """

    def __init__(
        self, oracle: Oracle, strategy: Strategy, seed: int = 0, hit_rate: float = 1.0
    ) -> None:
        self.oracle = oracle
        self.strategy = strategy
        self.hit_rate = hit_rate
        self.gate = Gate()
        self.error: BaseException | None = None
        self.num_calls = 0
        self.batches: list[list[DraftRequest]] = []
        self.released: list[str] = []  # ids, one for each call
        self._seed = seed

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.num_calls += 1
        self.batches.append(list(requests))
        await self.gate.passage()
        if self.error is not None:
            raise self.error
        return [self._draft(request) for request in requests]

    async def release(self, request_id: str) -> None:
        self.released.append(request_id)

    def _draft(self, request: DraftRequest) -> Draft:
        assert request.num_draft_tokens >= 1
        rng = random.Random(f"{self._seed} {request.request_id} {len(request.prefix)}")
        num_tokens = min(request.num_draft_tokens, request.max_nodes - 1)
        draft = self.strategy(rng, request, self.oracle(request, num_tokens))
        if not request.num_alternatives:
            return draft
        return replace(draft, alternatives=self._alternatives(rng, request, draft.tree))

    def _alternatives(
        self, rng: random.Random, request: DraftRequest, tree: DraftTree
    ) -> tuple[tuple[tuple[int, float], ...], ...]:
        paths: list[list[int]] = [[]]
        truth, found = self.oracle(request, tree.num_nodes + 1), []
        for parent, token_id in ((-1, -1), *zip(tree.parents, tree.token_ids, strict=True)):
            if token_id >= 0:
                paths.append([*paths[parent + 1], token_id])
            path = paths[-1]
            if len(path) < len(truth) and path == truth[: len(path)]:
                right = truth[len(path)]
            else:
                prefix = np.append(request.prefix, np.array(path, np.int32))
                [right] = self.oracle(replace(request, prefix=prefix), 1)
            others = [token for token in rng.sample(range(1, 40), 4) if token != right]
            entry = [(token, -3.0 - place) for place, token in enumerate(others)]
            if rng.random() < self.hit_rate:
                entry.insert(0, (right, -0.1))
            found.append(tuple(entry))
        return tuple(found)


class HangingDrafter:
    """Never answers a call, neither to draft nor to release; knows whether it was cancelled."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.num_calls = 0
        self.was_cancelled = False

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.is_asked.set()
        self.num_calls += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        raise AssertionError("unreachable")

    async def release(self, request_id: str) -> None:
        await asyncio.Event().wait()


def oracle_of(verifier: FakeVerifier) -> Oracle:
    """Return an oracle that knows a fake target's tokens, past EOS too."""

    return lambda request, num_tokens: verifier.continuation(
        request.prefix, num_tokens, request.sampling
    )

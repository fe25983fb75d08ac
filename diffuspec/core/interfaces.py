"""The interfaces between the roles. The coordinator knows only Drafter and Verifier.

Every method is batched, keeps the order of its requests, and does not change its arguments: worker
state is only a cache, and the same call on a fresh worker gives the same answer (a drafter may
guess differently; a verifier may not). Local, remote and fake implementations look the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from diffuspec.core.params import MAX_TREE_NODES, SamplingParams, SpeculationParams
from diffuspec.core.types import (
    Draft,
    DraftRequest,
    DraftTree,
    Lattice,
    Prompt,
    RequestOutput,
    TokenIds,
    Verdict,
    VerifyRequest,
)

ProxyState: TypeAlias = Any  # hashable; belongs to the proxy that created it
HiddenRows: TypeAlias = Any  # a tensor on the target's device, [num_rows, hidden_size]

LAST_LAYER = -1  # the input of the target's head: after the last layer and its norm


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Facts about the target that the coordinator and the drafters need."""

    vocab_size: int  # token ids the tokenizer knows: 0 .. vocab_size - 1
    max_model_len: int  # prompt and output tokens of one request
    max_sequences: int  # requests verified at the same time
    eos_token_ids: tuple[int, ...]
    max_tree_nodes: int = MAX_TREE_NODES  # drafted tokens verified in one step of one request
    num_pages: int | None = None  # size of its cache, see `core.pages`; None: no limit
    row_multiple: int = 1  # the rows of a request are padded to a multiple of this many


class Drafter(Protocol):
    """Proposes draft trees.

    `Draft.confidences` are natural-log probabilities that a token is right, given that its parent
    is. A model reports its own probabilities. A drafter without a model reports fixed priors,
    measured once: one for each kind of token that it can distinguish in advance, for example by the
    length of the match before it. The scheduler counts how often tokens of similar confidence were
    accepted (`algorithm.calibration`), so a prior need not be exact; but each kind needs its own
    prior, or its rate is mixed with another's.
    """

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order; an empty one means no draft.

        Raises InvalidRequestError before any work, DrafterError after.
        """
        ...

    async def release(self, request_id: str) -> None:
        """Free what is cached for a request. Unknown ids are ignored."""
        ...


class LatticeModel(Protocol):
    """The diffusion LM: prefixes in, lattices out."""

    async def lattices(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        """Return one lattice per request, in order; an empty one if it cannot draft yet.

        Raises InvalidRequestError before any work, DrafterError after.
        """
        ...

    async def release(self, request_id: str) -> None:
        """Free what is cached for a request. Unknown ids are ignored."""
        ...

    def close(self) -> None:
        """End its threads and free its memory. Nothing can be drafted afterwards."""
        ...


class PathScorer(Protocol):
    """CPS: lattices in, draft trees out."""

    async def search(
        self, requests: Sequence[DraftRequest], lattices: Sequence[Lattice]
    ) -> list[Draft]:
        """Return one draft per lattice, in order, at most max_nodes nodes each."""
        ...


class CausalProxy(Protocol):
    """Scores token ids left to right: ln P(token | state). Knows nothing of lattices.

    Equal states score every continuation equally.
    """

    @property
    def max_context_tokens(self) -> int:
        """Number of tokens before a position that can influence its score."""
        ...

    def begin(self, context: Sequence[int], salt: str | None = None) -> ProxyState:
        """Return the state after the context. `salt`: the request's cache_salt."""
        ...

    def expand(
        self, states: Sequence[ProxyState], candidates: Sequence[int]
    ) -> tuple[list[list[float]], list[list[ProxyState]]]:
        """Score every candidate after every state.

        Returns natural-log probabilities and the states after the candidates, both
        [num_states][num_candidates].
        """
        ...


class Verifier(Protocol):
    """The target: draft trees in, verdicts out."""

    @property
    def info(self) -> TargetInfo: ...

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """Return one verdict per request, in order, as if each were alone.

        A verdict's tokens depend only on prefix and sampling parameters; the draft tree only
        decides their number. Takes at most info.max_sequences requests, no request id twice. Raises
        VerifierError.
        """
        ...

    async def release(self, request_id: str) -> None:
        """Free what is cached for a request. Unknown ids are ignored."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What the target computed in one request's verification.

    Row 0 is the last prefix token, the root; row 1 + i is node i of the verified tree. Hidden
    states begin earlier: with the first prefix token that was not cached before the step.
    """

    prefix: TokenIds  # [num_tokens]
    tree: DraftTree
    token_ids: Sequence[int]  # the target's own token after each row, [1 + num_nodes]
    accepted_nodes: tuple[int, ...]
    # the likeliest tokens after each row, best first, [1 + num_nodes, num_top]
    top_token_ids: TokenIds
    num_cached: int = 0  # leading prefix tokens whose hidden states earlier steps computed
    # Hidden states of the other prefix tokens, then of the nodes; one tensor for each of the
    # observer's hidden_layers. They may be views of a larger tensor: copy what is kept.
    hidden_states: tuple[HiddenRows, ...] = ()
    salt: str | None = None  # the request's cache_salt


class Observer(Protocol):
    """Watches verifications in the verifier's process, for drafters that reuse their results.

    An observer identifies a request by its prefix: its id may differ between verifier and drafter.
    """

    @property
    def is_active(self) -> bool:
        """Whether to observe the next verification. If not, it costs nothing."""
        ...

    @property
    def num_top(self) -> int:
        """Number of likeliest tokens wanted after each row; 0: none."""
        ...

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose output is wanted, counted from 0, or LAST_LAYER."""
        ...

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take the results of a verification. Called in the verifier's thread, after the step."""
        ...


class ObservableVerifier(Verifier, Protocol):
    """A verifier in this process."""

    def add_observer(self, observer: Observer) -> None:
        """Let an observer see every verification from now on."""
        ...

    def remove_observer(self, observer: Observer) -> None: ...

    @property
    def model(self) -> Any:
        """The target's transformers model, or this process's share of it."""
        ...

    @property
    def num_ranks(self) -> int:
        """Number of processes over which the model is split."""
        ...


@dataclass(frozen=True, slots=True)
class HostedDrafter:
    """A drafter in a remote verifier's process, with an address of its own."""

    name: str  # the name by which requests choose it
    address: str = ""
    problem: str = ""  # why it is not serving


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """The health of one role."""

    name: str
    address: str = ""  # empty: in the coordinator's own process
    is_healthy: bool = True
    reason: str = ""  # why it is not healthy


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The state of one request."""

    request_id: str
    state: str  # "waiting", "drafting" or "verifying"
    seconds_in_state: float
    waits_for: str  # such as "a slot" or "drafter 0"
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The health of a service, and its requests. degraded_reasons: why it is slower than usual.

    The first role is the one that every answer needs.
    """

    roles: tuple[RoleStatus, ...]
    degraded_reasons: tuple[str, ...] = ()
    num_running: int = 0
    num_waiting: int = 0
    requests: tuple[RequestStatus, ...] = ()  # running and waiting
    num_unlisted_requests: int = 0  # running or waiting, but omitted from `requests`

    @classmethod
    def merge(
        cls, parts: Sequence[ServiceStatus], roles: Iterable[RoleStatus], reasons: Iterable[str]
    ) -> ServiceStatus:
        """Return the status of a service of several parts: their requests, and the given roles."""
        return cls(
            roles=tuple(roles),
            degraded_reasons=tuple(reasons),
            num_running=sum(part.num_running for part in parts),
            num_waiting=sum(part.num_waiting for part in parts),
            requests=tuple(request for part in parts for request in part.requests),
            num_unlisted_requests=sum(part.num_unlisted_requests for part in parts),
        )


class Frontend(Protocol):
    """Answers prompts. Belongs to one event loop."""

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the tokens of each step; closing the generator cancels the request.

        `committed_token_ids`: output of an earlier, interrupted run of the same request. The answer
        continues after these tokens, which are not yielded again, and the request waits at the
        front of the queue. Sampling needs the same seed as before.

        `num_losses`: see `core/losses.py`.

        Raises InvalidRequestError, OverloadedError, RequestCancelledError, FatalRequestError and
        VerifierError.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """Cancel all requests with an id; return whether there were any."""
        ...

    async def status(self) -> ServiceStatus:
        """Return the state of roles and requests, within a second or two."""
        ...

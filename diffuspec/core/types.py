"""The vocabulary of diffuspec, as immutable values.

target, p        the autoregressive model whose output is reproduced exactly
drafter, q       the model or method that proposes tokens, such as a diffusion language model
request          a prompt and everything that happens to it
prefix           prompt and committed tokens of a request
prefill          reading a part of the prefix that is not in the target's cache
lattice          candidates for each draft position with natural-log probabilities, pruned
draft tree       the tokens to verify, with parent indices; a chain is the tree with one branch
outcome          a possible end of a verification: the last accepted node, the target's token there
verdict          the outcome that happened: accepted tokens and exactly one token of the target's
                 own (correction or bonus)
pre-draft        a draft made for an outcome before the verdict is known: hit or miss
step             one verification of one request
draft length     num_draft_tokens, the paper's k
acceptance length   committed tokens per step, the target's own token included (Spec-Bench's MAT);
                 num_accepted_tokens leaves that token out

These values are passed between the roles; none of them depends on torch, Ray or gRPC. Those created
in every step are not frozen, because creating a frozen dataclass takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.pages import PageUse
from diffuspec.core.params import SamplingParams, TreeShape
from diffuspec.core.states import StateRows, StatesWanted

TokenIds: TypeAlias = NDArray[np.int32]
Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int] | TokenIds
PreDraftResult: TypeAlias = Literal["hit", "miss"]

MAX_ALTERNATIVES = 8
MAX_PRE_DRAFTS = 128  # largest number of pre-drafts in one batch, over all requests
NO_TOKENS: TokenIds = np.zeros(0, np.int32)
NO_TOKENS.flags.writeable = False


def num_shared_tokens(one: TokenIds, other: TokenIds) -> int:
    """Return the number of leading tokens that both have in common."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # EOS, a stop token id or a stop string
    LENGTH = "length"  # max_tokens reached


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Candidates for each draft position, most probable first, after pruning.

    The last position is the first one whose most probable raw token is EOS, or the one at the
    requested draft length. If the request wants alternatives, the cells after num_candidates hold
    the runners-up that pruning dropped, most probable first (they are never drafted); the remaining
    cells hold -1 and -inf.
    """

    token_ids: NDArray[np.int32]  # [num_positions, max_candidates]
    logprobs: NDArray[np.float32]  # [num_positions, max_candidates], natural log
    num_candidates: NDArray[np.int32]  # [num_positions], each at least 1
    num_tokens_before_eos: int  # L_gen of Eq. 9: min(s - 1, k)
    num_refreshed: int = 0  # cached prefix tokens computed again for this lattice

    @property
    def num_positions(self) -> int:
        return len(self.num_candidates)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Drafted tokens as a tree below the last prefix token.

    Parents come before their children; parent -1 is the root (the last prefix token). Siblings have
    different tokens. A chain has parents (-1, 0, 1, ...). A tree without nodes means plain
    decoding.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids)


EMPTY_TREE = DraftTree((), ())


@dataclass(slots=True, eq=False)
class DraftRequest:
    """One prefix to draft for: a committed one, or a hypothetical continuation (pre-draft).

    The prefix is read-only and complete; a drafter may have parts of it cached. A batch may contain
    several requests with one id: hypothetical continuations of the same committed prefix. The
    sampling parameters let the drafter add the target's own sampling noise to its guesses. The
    prediction is a text of which the answer may repeat large parts; most requests have none.
    """

    request_id: str
    prefix: TokenIds  # [num_tokens]
    num_draft_tokens: int  # the paper's k: masked positions appended to the prefix
    tree_shape: TreeShape
    max_nodes: int
    drafter_weight: float  # lambda of Eq. 8: 1 trusts the drafter alone
    sampling: SamplingParams
    num_alternatives: int = 0  # alternatives wanted at each node, up to MAX_ALTERNATIVES
    num_prompt_tokens: int = 0  # prompt tokens in the prefix; the rest is the answer so far
    states: StateRows | None = None  # the states that the drafter said it lacked
    prediction: TokenIds = field(default_factory=lambda: NO_TOKENS)


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft tree, and the drafter's confidence in it.

    confidences[i] is the drafter's natural-log probability of node i's token given that its parent
    is accepted. drafter_choices and proxy_choices hold, for each position of the best path, the
    candidate that the drafter alone or the proxy alone would have chosen. alternatives is empty, or
    holds the likeliest next tokens of the root and then of each node, with natural-log
    probabilities, most probable first and including the node's children.
    """

    tree: DraftTree
    confidences: tuple[float, ...]  # [num_nodes]
    num_tokens_before_eos: int
    drafter_choices: tuple[int, ...] = ()  # [length of the best path]
    proxy_choices: tuple[int, ...] = ()  # [length of the best path]
    draft_seconds: float = 0.0  # time of the whole batch of this draft
    search_seconds: float = 0.0
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()  # [1 + num_nodes] or empty
    transport_seconds: float = 0.0  # time between processes, excluding the workers' own
    states_wanted: StatesWanted | None = None  # None: the drafter does not read hidden states
    num_refreshed: int = 0  # cached prefix tokens computed again for this draft


EMPTY_DRAFT = Draft(EMPTY_TREE, (), 0)


@dataclass(slots=True, eq=False)
class VerifyRequest:
    """One request's draft tree, to be verified below its prefix.

    If the prompt is longer than the prefix, the tree is a chain of further prompt tokens: all of it
    is accepted, and the verdict has its log-probabilities if requested.

    If more than max_read_tokens tokens of the prefix are not cached, the target prefills the first
    max_read_tokens of them and verifies nothing: see `Verdict.num_unread_tokens`.
    """

    request_id: str
    prefix: TokenIds  # [num_tokens], prompt and committed tokens, at least one
    num_prompt_tokens: int  # prompt tokens in the prefix, or in prefix and tree
    tree: DraftTree
    sampling: SamplingParams
    states_wanted: StatesWanted | None = None  # states of cached tokens are recomputed
    max_read_tokens: int | None = None  # None: no limit

    @property
    def is_of_prompt(self) -> bool:
        """Whether the tree is a part of the prompt."""
        return self.num_prompt_tokens > len(self.prefix)

    def up_to_limit(self, num_cached: int) -> VerifyRequest:
        """Return this request, or a prefill up to the limit if more than that is not cached."""
        limit = self.max_read_tokens
        if limit is None or len(self.prefix) - num_cached <= limit:
            return self
        prefix, wanted = self.prefix[: num_cached + limit], self.states_wanted
        plain = SamplingParams(cache_salt=self.sampling.cache_salt)
        return VerifyRequest(self.request_id, prefix, len(prefix), EMPTY_TREE, plain, wanted)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities under the target's unmodified distribution, natural log."""

    logprob: float  # log-probability of the committed token
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most probable first
    rank: int | None = None  # rank of the committed token, 1 for the likeliest; None: unknown


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a verification: accepted draft tokens, then one token of the target's own."""

    token_ids: tuple[int, ...]  # at least one token
    accepted_nodes: tuple[int, ...]  # node indices of the accepted tokens, root to leaf
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per token, if requested
    verify_seconds: float = 0.0  # time of the whole batch of this verdict
    transport_seconds: float = 0.0  # time between processes, excluding the worker's own
    states: StateRows | None = None  # requested states of prefix and accepted tokens
    num_cached_tokens: int = 0  # prefix tokens in the target's cache before the verification
    # prefix tokens not cached yet; if there are any, token_ids is meaningless
    num_unread_tokens: int = 0
    # nothing was verified because the grammar's masks are not ready, or pages are missing: send it
    # again
    is_held: bool = False
    pages: PageUse | None = None  # pages of the target's cache after the batch; None: no limit

    @property
    def num_accepted_tokens(self) -> int:
        return len(self.accepted_nodes)


@dataclass(slots=True)
class StepStats:
    """The cost and the result of one step. All statistics and metrics are computed from these."""

    num_draft_tokens: int  # requested length; 0: no draft
    num_tree_nodes: int
    num_accepted_tokens: int
    num_committed_tokens: int  # tokens left after cutting at EOS, a stop string or max_tokens
    tree_depth: int = 0
    draft_seconds: float = 0.0
    search_seconds: float = 0.0
    verify_seconds: float = 0.0
    step_seconds: float = 0.0
    fallback: str | None = None  # why the step had no draft although there should have been one
    transport_seconds: float = 0.0  # time that drafts and verdicts spent between processes
    pre_draft: PreDraftResult | None = None  # None: nothing was pre-drafted
    num_wasted_draft_tokens: int = 0  # tokens pre-drafted for outcomes that did not happen
    verify_idle_seconds: float = 0.0  # part of the step with no verification in flight
    draft_idle_seconds: float = 0.0  # part of the step with no draft call in flight
    # first step only: prompt tokens that other requests left in the cache
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """The tokens that one step drafted, and the accepted ones."""

    tree: DraftTree
    confidences: tuple[float, ...]  # [num_nodes], see Draft
    accepted_nodes: tuple[int, ...]  # node indices, root to leaf


@dataclass(slots=True)
class RequestOutput:
    """The tokens and the text that one step added to an answer.

    The first num_accepted_tokens tokens were drafted, the others are the target's own. pieces holds
    the text that each token released; the last piece of an answer includes text held back so far.
    text joins the pieces. The last output of an answer contains its seed.
    """

    token_ids: tuple[int, ...]
    num_accepted_tokens: int
    pieces: tuple[str, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    step: StepStats
    seed: int | None = None
    draft: VerifiedDraft | None = None  # the step's draft, if it had one and report_drafts is set
    # Only in the first output of an answer, if requested: one for each prompt token after the
    # first.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    stop_reason: str | int | None = None  # the stop string or stop token id that ended the answer

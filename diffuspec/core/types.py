"""The vocabulary of diffuspec, as frozen values.

target, p        the autoregressive model whose output is reproduced exactly
drafter, q       the diffusion language model that proposes tokens
prefix           prompt and committed tokens of a request
lattice          candidates for each draft position with natural-log probabilities, pruned
draft tree       what is verified: tokens with parent indices; a chain is the tree with one branch
outcome          what a verification can end in: the last accepted node, the target's token there
verdict          the outcome that happened: accepted tokens and exactly one token of the target's
                 own (correction or bonus)
step             one verification of one request
draft length     num_draft_tokens, the paper's k
acceptance length   committed tokens per step, the target's own token included (Spec-Bench's MAT);
                 num_accepted_tokens leaves that token out

These values cross the borders between the roles; none of them knows torch, Ray or gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.params import SamplingParams, TreeShape

TokenIds: TypeAlias = NDArray[np.int32]
Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
PreDraftResult: TypeAlias = Literal["hit", "miss"]

MAX_ALTERNATIVES = 8


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # EOS, a stop token id or a stop string
    LENGTH = "length"  # max_tokens reached


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Candidates for each draft position, most probable first, after pruning.

    Positions end with the first one whose most probable raw token is EOS (that position
    included), or with the draft length asked for. Cells past num_candidates hold runners-up when
    alternatives are asked for (what pruning dropped, most probable first: no candidates for the
    draft itself), and then -1 and -inf.
    """

    token_ids: NDArray[np.int32]  # [num_positions, max_candidates]
    logprobs: NDArray[np.float32]  # [num_positions, max_candidates], natural log
    num_candidates: NDArray[np.int32]  # [num_positions], each at least 1
    num_tokens_before_eos: int  # L_gen of Eq. 9: min(s - 1, k)

    @property
    def num_positions(self) -> int:
        return len(self.num_candidates)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Drafted tokens as a tree below the last prefix token.

    Parents come before their children; parent -1 is the root (the last prefix token). Siblings
    carry different tokens. A chain has parents (-1, 0, 1, ...). No nodes: plain decoding.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids)


EMPTY_TREE = DraftTree((), ())


@dataclass(frozen=True, slots=True, eq=False)
class DraftRequest:
    """What a drafter needs to draft for one prefix, real or hypothetical.

    The prefix is read-only and complete; a drafter may recognise it from its own cache. A batch may
    hold several requests with one id: hypothetical continuations of the same committed prefix.
    The sampling parameters let it add the target's own sampling noise to its guesses.
    """

    request_id: str
    prefix: TokenIds  # [num_tokens]
    num_draft_tokens: int  # the paper's k: masked positions appended to the prefix
    tree_shape: TreeShape
    max_nodes: int
    drafter_weight: float  # lambda of Eq. 8: 1 trusts the drafter alone
    sampling: SamplingParams
    num_alternatives: int = 0  # wanted at each node, at most MAX_ALTERNATIVES


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft tree and what the draft-length controller needs to judge it.

    confidences[i] is the drafter's natural-log probability of node i's token given that its
    parent is right. drafter_choices and proxy_choices are, for the nodes' positions on the best
    path, the candidates that the drafter alone and the proxy alone would have taken there.
    alternatives are empty or have an entry for the root and one for each node: the likeliest tokens
    after it with natural-log probabilities, most probable first, the node's children among them.
    """

    tree: DraftTree
    confidences: tuple[float, ...]  # [num_nodes]
    num_tokens_before_eos: int
    drafter_choices: tuple[int, ...] = ()  # [length of the best path]
    proxy_choices: tuple[int, ...] = ()  # [length of the best path]
    draft_seconds: float = 0.0  # of the whole batch this draft was made in
    search_seconds: float = 0.0
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()  # [1 + num_nodes] or empty
    transport_seconds: float = 0.0  # between processes, beyond the workers' own time


EMPTY_DRAFT = Draft(EMPTY_TREE, (), 0)


@dataclass(frozen=True, slots=True, eq=False)
class VerifyRequest:
    """One request's draft tree, to be verified below its prefix."""

    request_id: str
    prefix: TokenIds  # [num_tokens], prompt and committed tokens, at least one
    num_prompt_tokens: int
    tree: DraftTree
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities under the target's unmodified distribution, natural log."""

    logprob: float  # of the committed token
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most probable first


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a verification: accepted draft tokens, then one token of the target's own."""

    token_ids: tuple[int, ...]  # at least one
    accepted_nodes: tuple[int, ...]  # node indices of the accepted tokens, root to leaf
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one per token, when asked for
    verify_seconds: float = 0.0  # of the whole batch this verdict was made in
    transport_seconds: float = 0.0  # between processes, beyond the worker's own time

    @property
    def num_accepted_tokens(self) -> int:
        return len(self.accepted_nodes)


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one step cost and gave. Everything measured is read off these."""

    num_draft_tokens: int  # asked of the drafter; 0: verified without a draft
    num_tree_nodes: int
    num_accepted_tokens: int
    num_committed_tokens: int  # after cutting at EOS, stop or max_tokens
    tree_depth: int = 0
    draft_seconds: float = 0.0
    search_seconds: float = 0.0
    verify_seconds: float = 0.0
    step_seconds: float = 0.0
    fallback: str | None = None  # why a step that should have had a draft had none
    transport_seconds: float = 0.0  # of drafting and verifying, beyond the workers' own time
    pre_draft: PreDraftResult | None = None  # how the verdict met the outcomes drafted ahead
    num_wasted_draft_tokens: int = 0  # asked for outcomes that did not happen
    verify_idle_seconds: float = 0.0  # the verifier had nothing to do, waiting for drafts
    draft_idle_seconds: float = 0.0  # the drafter had nothing to do


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to an answer.

    The first num_accepted_tokens of the tokens were drafted, the rest is the target's own.
    pieces holds the text that each token released; text is all of it, and at the end also what
    was held back. The last one names the seed of the answer, a fresh one if none was given.
    """

    token_ids: tuple[int, ...]
    num_accepted_tokens: int
    pieces: tuple[str, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    step: StepStats
    seed: int | None = None

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

import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from diffuspec import checks
from diffuspec.checks import require

TokenIds: TypeAlias = NDArray[np.int32]
TreeShape: TypeAlias = Literal["path", "beams", "best_first"]
DraftLengthPolicy: TypeAlias = Literal["paper", "cost_aware", "fixed", "off"]
PreDraftResult: TypeAlias = Literal["hit", "miss"]

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_DRAFT_TOKENS = 128
MAX_TREE_NODES = 256
MAX_ALTERNATIVES = 8
MAX_OUTCOMES = 16
_NUM_SEED_BITS = 53  # every reader of JSON keeps such numbers whole


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # EOS, a stop token id or a stop string
    LENGTH = "length"  # max_tokens reached


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's distribution is shaped and when a request ends.

    temperature 0 is greedy. With a seed the output is a function of the prompt and these
    parameters alone; where none is given, each request gets a fresh one (with_seed). top_k 0 and
    top_p 1 switch those filters off. Repetition penalty counts prompt and output (divides positive
    logits, multiplies negative ones); presence and frequency penalties count output only and are
    subtracted from the logits. stop and stop_token_ids may be given as lists, stop also as one
    string. Raises InvalidRequestError.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # top alternatives reported per token; 0 = the chosen one alone

    def __post_init__(self) -> None:
        for name, check in _SAMPLING_TYPES.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        require(0 <= self.temperature <= 10, "temperature", self.temperature, "from 0 to 10")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        if self.seed is not None:
            require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        penalty = self.repetition_penalty
        require(0 < penalty <= 10, "repetition_penalty", penalty, "above 0 and at most 10")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(-10 <= value <= 10, name, value, "from -10 to 10")
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        checks.few("stop", self.stop, MAX_STOP_STRINGS, "strings")
        for text in self.stop:
            fits = 0 < len(text) <= MAX_STOP_STRING_CHARACTERS
            limit = f"strings of 1 to {MAX_STOP_STRING_CHARACTERS} characters"
            require(fits, "stop", f"a string of {len(text)} characters", limit)
        checks.few("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, "ids")
        if self.logprobs is not None:
            in_range = 0 <= self.logprobs <= MAX_LOGPROBS
            require(in_range, "logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def lacks_seed(self) -> bool:
        """Whether tokens are to be drawn and nothing says with which seed."""
        return self.seed is None and not self.is_greedy

    def with_seed(self) -> SamplingParams:
        """Return these with a fresh seed if they lack one: done once, where prompts come in."""
        return replace(self, seed=secrets.randbits(_NUM_SEED_BITS)) if self.lacks_seed else self

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )


_SAMPLING_TYPES: dict[str, checks.Check] = {
    **dict.fromkeys(("temperature", "top_p"), checks.number),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), checks.number),
    **dict.fromkeys(("top_k", "max_tokens"), checks.integer),
    **dict.fromkeys(("seed", "logprobs"), checks.optional_integer),
    "stop": checks.strings,
    "stop_token_ids": checks.integers,
    "ignore_eos": checks.boolean,
}


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
class SpeculationParams:
    """Per-request control of drafting. None of it changes the output, only its speed.

    Raises InvalidRequestError.
    """

    policy: DraftLengthPolicy = "cost_aware"
    num_draft_tokens: int = 20  # for the fixed policy
    tree_shape: TreeShape = "best_first"
    max_nodes: int = 32
    drafter_weight: float | Literal["adaptive"] = 0.5  # lambda of Eq. 8
    num_outcomes: int | Literal["auto"] = "auto"  # drafted ahead at most; auto: by cost; 0: none

    def __post_init__(self) -> None:
        checks.one_of("policy", self.policy, get_args(DraftLengthPolicy))
        checks.one_of("tree_shape", self.tree_shape, get_args(TreeShape))
        k = checks.integer("num_draft_tokens", self.num_draft_tokens)
        require(1 <= k <= MAX_DRAFT_TOKENS, "num_draft_tokens", k, f"from 1 to {MAX_DRAFT_TOKENS}")
        nodes = checks.integer("max_nodes", self.max_nodes)
        require(1 <= nodes <= MAX_TREE_NODES, "max_nodes", nodes, f"from 1 to {MAX_TREE_NODES}")
        if self.drafter_weight != "adaptive":
            weight = checks.number("drafter_weight", self.drafter_weight, "a number, or 'adaptive'")
            require(0 <= weight <= 1, "drafter_weight", weight, "from 0 to 1, or 'adaptive'")
        if self.num_outcomes != "auto":
            count = checks.integer("num_outcomes", self.num_outcomes, "an integer, or 'auto'")
            limit = f"from 0 to {MAX_OUTCOMES}, or 'auto'"
            require(0 <= count <= MAX_OUTCOMES, "num_outcomes", count, limit)

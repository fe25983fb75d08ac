"""One request of an engine: its tokens, the draft being verified, and other drafts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from diffuspec.algorithm.draft_tree import draft_after, follow
from diffuspec.algorithm.drafter_weight import DrafterWeight
from diffuspec.core.params import MAX_DRAFT_TOKENS, MAX_TREE_NODES, SamplingParams
from diffuspec.core.types import (
    EMPTY_DRAFT,
    MAX_ALTERNATIVES,
    Draft,
    DraftRequest,
    DraftTree,
    TokenIds,
    Verdict,
)
from diffuspec.speculation.acceptance import Acceptance, Prospects, SharedAcceptance
from diffuspec.speculation.outcomes import RankedOutcome

_MAX_MADE = 32  # drafts kept for one request


@dataclass(slots=True, eq=False)
class ReadyDraft:
    """A draft for a request, assuming that it continues with certain tokens."""

    tokens: tuple[int, ...]  # tokens assumed after the present prefix
    draft: Draft
    length: int  # requested length
    is_rest: bool = False  # whether it is the end of a draft for a shorter prefix


class EngineRequest:
    """One request. Only its session changes it."""

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        shared: SharedAcceptance,
        drafter_weight: float | Literal["adaptive"],
        sampling: SamplingParams,
    ) -> None:
        """`request_id`: unique among the requests of all engines."""
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.priority = 0
        self.num_left = 0  # tokens that may still be committed
        self.max_draft_tokens = 0  # most draft tokens that the engine accepts now
        self.acceptance = Acceptance(shared)
        self.sent = EMPTY_DRAFT  # what the engine verifies
        self.length = 0  # latest draft length
        self.num_accepted = 0  # drafted tokens accepted in the engine's latest step
        self.is_read = False  # whether the drafter holds the prompt
        self._ranked: list[RankedOutcome] | None = None  # outcomes of the running verification
        self._tokens = np.zeros(256, np.int32)
        self._made: list[ReadyDraft] = []
        self.num_tokens = 0
        self._weight = DrafterWeight(drafter_weight)
        self._sampling = sampling

    @property
    def prefix(self) -> TokenIds:
        """Prompt and committed tokens, read-only."""
        prefix = self._tokens[: self.num_tokens]
        prefix.flags.writeable = False
        return prefix

    @property
    def room(self) -> int:
        """Largest number of draft tokens for the present prefix."""
        return self.room_after(0)

    def room_after(self, num_tokens: int) -> int:
        """Largest number of draft tokens once num_tokens more tokens are committed."""
        return max(min(self.num_left - num_tokens - 1, self.max_draft_tokens), 0)

    @property
    def prospects(self) -> Prospects:
        """What its next draft is expected to bring."""
        return self.acceptance.prospects

    @property
    def num_unread(self) -> int:
        """Number of tokens that the drafter must read for a first draft."""
        return 0 if self.is_read else self.num_tokens

    def tokens_from(self, start: int) -> tuple[int, ...]:
        """Return the tokens of the prefix from an index on."""
        return tuple(self._tokens[start : self.num_tokens].tolist())

    # ---- reports of the engine

    def advance(self, base_length: int, token_ids: Sequence[int]) -> Verdict | None:
        """Take the tokens after a base; return the verdict that they imply on the draft sent.

        The base must be held.
        """
        if base_length < self.num_tokens:  # the engine has gone back, which is unexpected
            self._tokens, self.num_tokens = self._tokens.copy(), base_length
            self._made, self.sent = [], EMPTY_DRAFT
        self._append(token_ids)
        verdict = _verdict(self.sent.tree, token_ids) if token_ids else None
        self.num_accepted = verdict.num_accepted_tokens if verdict is not None else 0
        if verdict is not None:
            self.acceptance.observe_verdict(self.sent, verdict)
            self._weight.observe(self.sent, verdict)
        if token_ids:
            committed = tuple(token_ids)
            self._made = [one for made in self._made if (one := _after(made, committed))]
            self._ranked = None
        return verdict

    def _append(self, token_ids: Sequence[int]) -> None:
        end = self.num_tokens + len(token_ids)
        if end > len(self._tokens):  # the old array stays unchanged: workers hold views of it
            grown = np.zeros(end + max(end // 4, 256), np.int32)
            grown[: self.num_tokens] = self._tokens[: self.num_tokens]
            self._tokens = grown
        self._tokens[self.num_tokens : end] = token_ids
        self.num_tokens = end

    # ---- drafts

    def draft_request(self, tokens: Sequence[int], length: int) -> DraftRequest:
        """Return the request for a draft after the prefix and these tokens.

        One more position is drafted, for candidates for the target's token after full acceptance. A
        tree is drafted even for engines that verify chains: its other branches show what else may
        follow.
        """
        prefix, num_draft_tokens = self.prefix, min(length + 1, MAX_DRAFT_TOKENS)
        if tokens:
            prefix = np.concatenate([prefix, np.array(tokens, np.int32)])
        return DraftRequest(
            request_id=self.request_id,
            prefix=prefix,
            num_draft_tokens=num_draft_tokens,
            tree_shape="best_first",
            max_nodes=min(2 * num_draft_tokens, MAX_TREE_NODES),
            drafter_weight=self._weight.value,
            sampling=self._sampling,
            num_alternatives=MAX_ALTERNATIVES,
            num_prompt_tokens=self.num_prompt_tokens,
        )

    def keep(self, num_tokens: int, tokens: tuple[int, ...], draft: Draft, length: int) -> None:
        """Keep a draft that was requested when the prefix had num_tokens, for after further tokens.

        It is dropped if the request has continued differently.
        """
        if num_tokens > self.num_tokens:
            return
        made = _after(ReadyDraft(tokens, draft, length), self.tokens_from(num_tokens))
        if made is None or not made.draft.tree.num_nodes:
            return
        self._made = [*self._made[1 - _MAX_MADE :], made]
        if not made.tokens and self.sent is EMPTY_DRAFT:
            self.sent, self._ranked = root_of(made.draft), None  # the root lists what may follow

    def best(self) -> tuple[ReadyDraft | None, float]:
        """Return the most valuable draft at hand, and its value in tokens."""
        best, most = None, 0.0
        for made in self._made:
            if not made.tokens:
                tokens = sum(self.acceptance.reach(made.draft))
                if tokens > most:
                    best, most = made, tokens
        return best, most

    def reach_of(self, made: ReadyDraft) -> list[float]:
        """Return the reach of the nodes of a draft that is about to be sent, and learn from it."""
        if made.is_rest:
            return self.acceptance.reach(made.draft)
        return self.acceptance.observe_draft(made.draft, made.length)

    def send(self, draft: Draft) -> None:
        """Record what the engine verifies from now on."""
        self.sent, self._ranked = draft, None

    def outcomes(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return the likeliest outcomes of the verification that have no draft yet.

        Each is a pair of its probability and the tokens that it commits, likeliest first.
        """
        if self._ranked is None:
            self._ranked = self.acceptance.rank(self.sent, self.prefix)
        made, tree = {made.tokens for made in self._made}, self.sent.tree
        outcomes = [(ranked.probability, ranked.outcome.committed(tree)) for ranked in self._ranked]
        return [(chance, tokens) for chance, tokens in outcomes if tokens not in made]

    def pre_drafts(self) -> list[ReadyDraft]:
        """Return the drafts at hand for possible continuations."""
        return [made for made in self._made if made.tokens]


def _verdict(tree: DraftTree, committed: Sequence[int]) -> Verdict:
    """Return the verdict implied by committed tokens. The last token is never a drafted one."""
    accepted = tuple(follow(tree, committed[:-1]))
    return Verdict(tuple(committed[: len(accepted) + 1]), accepted)


def _after(made: ReadyDraft, committed: tuple[int, ...]) -> ReadyDraft | None:
    """Return what remains of a draft once these tokens are committed; None: nothing."""
    tokens, size = made.tokens, len(committed)
    if tokens[:size] == committed:
        return ReadyDraft(tokens[size:], made.draft, made.length, made.is_rest)
    if committed[: len(tokens)] != tokens:
        return None
    rest = draft_after(made.draft, committed[len(tokens) :])
    return ReadyDraft((), rest, made.length, is_rest=True) if rest.tree.num_nodes else None


def root_of(draft: Draft) -> Draft:
    """Return a draft without nodes, but with the alternatives at the root."""
    return Draft(DraftTree((), ()), (), 0, alternatives=draft.alternatives[:1])

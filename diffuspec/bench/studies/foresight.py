"""How often the outcomes that are drafted ahead hold what happens, on real drafts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from diffuspec.algorithm.draft_tree import depths, prune_draft
from diffuspec.control.outcomes import OutcomeModel, OutcomeRanking, RankedOutcome, outcome_of
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import (
    MAX_ALTERNATIVES,
    Draft,
    DraftRequest,
    TokenIds,
    Verdict,
    VerifyRequest,
)

FAN_OUTS = (1, 2, 4, 8, 16)
_GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class Foresight:
    """How often what happened was among the first outcomes, by how many of them."""

    family: str
    num_steps: int  # whose verdict left something to draft
    mean_acceptance_length: float
    hit_rates: Mapping[int, float]
    expected: Mapping[int, float]  # what the ranking itself thought


def measure_foresight(
    verifier: Verifier,
    drafter: Drafter,
    prompts: Mapping[str, Sequence[TokenIds]],
    speculation: SpeculationParams,
    max_tokens: int = 96,
) -> list[Foresight]:
    """Answer the prompts of every family, one by one, ranking the outcomes of every draft.

    Drafts have the fixed length, the shape and the size that are given.
    """
    return asyncio.run(_measure_foresight(verifier, drafter, prompts, speculation, max_tokens))


@dataclass(slots=True)
class _Tally:
    num_steps: int = 0
    num_tokens: int = 0
    num_ranked: int = 0
    hits: Counter[int] = field(default_factory=Counter)
    expected: dict[int, float] = field(default_factory=lambda: dict.fromkeys(FAN_OUTS, 0.0))

    def count(self, ranked: Sequence[RankedOutcome], verdict: Verdict) -> None:
        happened = outcome_of(verdict)
        self.num_ranked += 1
        for fan_out in FAN_OUTS:
            first = ranked[:fan_out]
            self.hits[fan_out] += happened in [one.outcome for one in first]
            self.expected[fan_out] += sum(one.probability for one in first)

    def result(self, family: str) -> Foresight:
        count = max(self.num_ranked, 1)
        return Foresight(
            family,
            self.num_ranked,
            self.num_tokens / max(self.num_steps, 1),
            {fan_out: self.hits[fan_out] / count for fan_out in FAN_OUTS},
            {fan_out: self.expected[fan_out] / count for fan_out in FAN_OUTS},
        )


async def _measure_foresight(
    verifier: Verifier,
    drafter: Drafter,
    prompts: Mapping[str, Sequence[TokenIds]],
    speculation: SpeculationParams,
    max_tokens: int,
) -> list[Foresight]:
    model, results = OutcomeModel(), []
    for family, texts in prompts.items():
        tally = _Tally()
        for number, text in enumerate(texts):
            answer = _Answer(f"{family}-{number}", text, max_tokens, speculation)
            await answer.foresee(verifier, drafter, OutcomeRanking(model), tally)
        results.append(tally.result(family))
    return results


class _Answer:
    """One prompt and what was committed after it."""

    def __init__(
        self, name: str, prompt: TokenIds, max_tokens: int, speculation: SpeculationParams
    ) -> None:
        self._name = name
        self._num_prompt_tokens = len(prompt)
        self._max_len = len(prompt) + max_tokens
        self._speculation = speculation
        self._prefix = prompt

    async def foresee(
        self, verifier: Verifier, drafter: Drafter, ranking: OutcomeRanking, tally: _Tally
    ) -> None:
        """Decode to the end, ranking every draft's outcomes before its verdict."""
        stops = frozenset(verifier.info.eos_token_ids)
        while len(self._prefix) + 1 < self._max_len:
            draft = self._cut(*await drafter.draft([self._draft_request()]))
            ranked = ranking.rank(draft, self._prefix)
            [verdict] = await verifier.verify([self._verify_request(draft)])
            ranking.observe(draft, verdict)
            tally.num_steps += 1
            tally.num_tokens += len(verdict.token_ids)
            self._prefix = np.append(self._prefix, np.array(verdict.token_ids, np.int32))
            if not stops.isdisjoint(verdict.token_ids):
                break
            tally.count(ranked, verdict)
        await drafter.release(self._name)
        await verifier.release(self._name)

    def _draft_request(self) -> DraftRequest:
        speculation = self._speculation
        weight = speculation.drafter_weight
        room = self._max_len - len(self._prefix)
        return DraftRequest(
            request_id=self._name,
            prefix=self._prefix,
            num_draft_tokens=min(speculation.num_draft_tokens + 1, room),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=0.5 if weight == "adaptive" else weight,
            sampling=_GREEDY,
            num_alternatives=MAX_ALTERNATIVES,
        )

    def _cut(self, draft: Draft) -> Draft:
        """Leave the last position to the alternatives."""
        length = self._speculation.num_draft_tokens
        kept = [node for node, depth in enumerate(depths(draft.tree)) if depth <= length]
        return prune_draft(draft, kept)

    def _verify_request(self, draft: Draft) -> VerifyRequest:
        num_prompt_tokens = self._num_prompt_tokens
        return VerifyRequest(self._name, self._prefix, num_prompt_tokens, draft.tree, _GREEDY)

"""SAM decoding (SAMD): drafts what followed an earlier occurrence of the text's longest suffix.

Algorithm and constants of Spec-Bench's model/samd without an auxiliary drafter ("sam_only"), after
Hu et al., SAM Decoding (arXiv 2411.10666). Each request has a suffix automaton over its own prompt
and answer; another one covers the texts given in the configuration, if any, in which a match must
be longer by a bias. The longer the match, the longer the draft: a chain from the request's own
text, or a tree of the most frequent continuations in the given texts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from diffuspec.algorithm.own_text import BOUNDARY, OwnText, confidence_after, text_of
from diffuspec.algorithm.per_request import PerRequest
from diffuspec.algorithm.suffix_automaton import Match, SuffixAutomaton
from diffuspec.core.drafter_config import SuffixAutomatonConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import PathScorer
from diffuspec.core.types import Draft, DraftRequest, TokenIds
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.tree_builder import TreeBuilder, draft_each

_MAX_MATCH = 64  # tokens compared with the texts; a longer match does not lengthen the draft
TEXT_BIAS = 5  # tokens by which a match in the texts must exceed one in the request's own text
_MAX_WIDTH = 8  # nodes at one depth of a tree from the texts


class SuffixAutomatonDrafter:
    """Drafts using only the prefix and the given texts.

    A request's automaton is a cache: it is updated to the request's prefix, even a hypothetical
    one, or rebuilt if that is impossible. If requests are not released, only the latest automata
    are kept.
    """

    def __init__(
        self,
        config: SuffixAutomatonConfig,
        eos_token_ids: Sequence[int],
        max_requests: int,
        texts: Iterable[Sequence[int]],
    ) -> None:
        """`texts`: lists of token ids; see SuffixAutomatonConfig.texts."""
        self._config = config
        self._eos_token_ids = frozenset(eos_token_ids)
        self._own = PerRequest(OwnText, max_requests)
        self._texts = _Texts(texts, config.max_text_tokens)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order; an empty one if nothing matches."""
        await self.read(requests)
        return draft_each(requests, self._draft)

    async def release(self, request_id: str) -> None:
        self._own.release(request_id)

    def close(self) -> None:
        self._own.clear()

    async def read(self, requests: Sequence[DraftRequest]) -> None:
        """Process long prefixes in pieces, leaving the event loop to others in between."""
        for request in requests:
            own = self._own.of(request.request_id)
            for beginning in own.pieces(text_of(request)):
                own.follow(beginning)
                await asyncio.sleep(0)

    def find(self, request: DraftRequest) -> tuple[Match, Match]:
        """Return the longest matches of the prefix in its own text and in the given texts."""
        own = self._own.of(request.request_id).follow(text_of(request))
        return own, self._texts.match(request.prefix)

    def draft_after(self, request: DraftRequest, own: Match, given: Match) -> Draft:
        """Draft what followed the longer of the two matches that `find` returned."""
        builder = TreeBuilder(request, self._eos_token_ids)
        if given.num_tokens - TEXT_BIAS > own.num_tokens:
            self._texts.grow(builder, given, self._length(given, request))
        elif own.num_tokens:
            text = self._own.of(request.request_id)
            found = text.tokens_after(own, self._length(own, request))
            confidences = [confidence_after(own.num_tokens + depth) for depth in range(len(found))]
            builder.add_chain(found, confidences)
        return builder.draft()

    def _draft(self, request: DraftRequest) -> Draft:
        return self.draft_after(request, *self.find(request))

    def _length(self, match: Match, request: DraftRequest) -> int:
        """Return the number of tokens to draft after a match."""
        config = self._config
        length = 1 + int(config.draft_tokens_per_match * match.num_tokens)
        return min(length, config.num_draft_tokens, request.num_draft_tokens)


class _Texts:
    """The automaton of the given texts."""

    def __init__(self, texts: Iterable[Sequence[int]], max_tokens: int) -> None:
        token_ids = (one for text in texts for one in (*text, BOUNDARY))
        self._automaton = SuffixAutomaton(islice(token_ids, max_tokens))
        self._counts = self._automaton.counts()

    def match(self, prefix: TokenIds) -> Match:
        """Return the longest suffix of a prefix that occurs in the texts."""
        return self._automaton.match(prefix[-_MAX_MATCH:].tolist())

    def grow(self, builder: TreeBuilder, match: Match, num_tokens: int) -> None:
        """Add at most num_tokens tokens that followed a match, most frequent first."""
        counts, automaton = self._counts, self._automaton

        def expand(state: int, depth: int) -> Iterator[tuple[int, float, int]]:
            right = confidence_after(match.num_tokens + depth - 1)
            for token_id, after in automaton.after(state).items():
                if token_id != BOUNDARY:
                    yield token_id, right + math.log(counts[after] / counts[state]), after

        builder.add_likeliest(match.state, expand, num_tokens, num_tokens, _MAX_WIDTH)


def load_samd(config: SuffixAutomatonConfig, target: Target) -> SuffixAutomatonDrafter:
    """Load a drafter with the texts named in its configuration. Raises ConfigError."""
    texts: Iterable[Sequence[int]] = ()
    if config.texts is not None:
        from diffuspec.text.corpus import CorpusReader  # imports transformers

        if target.path is None:
            raise ConfigError("drafter.texts needs the directory of the target, for its tokenizer")
        texts = CorpusReader([config.texts], target.path).read()
    info = target.info
    return SuffixAutomatonDrafter(config, info.eos_token_ids, info.max_sequences, texts)


def _load(
    config: SuffixAutomatonConfig, target: Target, path_scorer: PathScorer | None
) -> SuffixAutomatonDrafter:
    return load_samd(config, target)


KIND = DrafterKind(SuffixAutomatonConfig, _load)

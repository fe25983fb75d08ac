"""Acceptance for a plan: typed in as a number, or recorded from a drafter's replay.

A recording holds the widest draft at each token of an answer, so that drafts of any length and size
can be replayed: the leading nodes of a tree that lists its nodes best first.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from diffuspec.algorithm.draft_tree import depths, follow
from diffuspec.bench.planning.traffic import VOCAB_SIZE, Answer, Guess, Regime, Text, make_answers
from diffuspec.core.errors import ConfigError
from diffuspec.core.types import DraftTree

_NEVER = -16.0  # log-odds of a right token
_HALVINGS, _NUM_ANSWERS = 10, 32  # of the search for the log-odds
PAPER_DRAFT_TOKENS = 30  # typed acceptance lengths are those of the paper's longest drafts
NOT_LISTED = 255

_MOST_BYTES = 2**27
_MOST_DRAFT_BYTES = 2**24  # of one answer
_STEPS = 32  # of a stored confidence, per nat
_UNLIKELY = math.log(0.01)


class RecordedDraft(NamedTuple):
    """A draft tree without its tokens, and the part of it that is right."""

    parents: tuple[int, ...]
    confidences: tuple[float, ...]
    accepted_nodes: tuple[int, ...]
    # place of the target's token among the alternatives at the last accepted node, or NOT_LISTED
    listed_at: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The drafts of a drafter at each token of answers, by answer."""

    drafter: str
    source: str  # command, machine, revision and date
    families: tuple[str, ...]  # of each answer
    answers: tuple[tuple[RecordedDraft, ...], ...]

    def of_family(self, family: str | None) -> Recording:
        """Return the answers of one family; None: all. Raises ConfigError."""
        if family is not None and family not in self.families:
            names = ", ".join(sorted(set(self.families)))
            raise ConfigError(f"--family must be one of {names}, got {family!r:.80}")
        kept = [n for n, name in enumerate(self.families) if family in (None, name)]
        families = tuple(self.families[n] for n in kept)
        return replace(self, families=families, answers=tuple(self.answers[n] for n in kept))


@dataclass(frozen=True)
class RecordedAnswer(Answer):
    """An answer whose drafts are recorded ones. A short recording is repeated."""

    drafts: tuple[RecordedDraft, ...] = ()

    def guess(self, position: int, num_draft_tokens: int, max_nodes: int) -> Guess:
        draft = self.drafts[position % len(self.drafts)]
        levels = depths(DraftTree((), draft.parents))
        right, own = set(draft.accepted_nodes), self.own[position:]
        # A wrong token is the target's plus 1 and the node's number: siblings differ.
        tokens = [
            own[level - 1] if node in right else (own[level - 1] + 1 + node) % VOCAB_SIZE
            for node, level in enumerate(levels)
        ]
        kept = [n for n, level in enumerate(levels[:max_nodes]) if level <= num_draft_tokens]
        new_index = {-1: -1} | {node: index for index, node in enumerate(kept)}
        tree = DraftTree(
            tuple(tokens[node] for node in kept),
            tuple(new_index[draft.parents[node]] for node in kept),
        )
        listed = self._listed(draft, tokens, own)
        return Guess(
            tree,
            tuple(draft.confidences[node] for node in kept),
            tuple(tuple(listed[node]) for node in (-1, *kept)),
        )

    def _listed(
        self, draft: RecordedDraft, tokens: Sequence[int], own: Sequence[int]
    ) -> dict[int, list[tuple[int, float]]]:
        """Return the likeliest next tokens of each node, children first."""
        listed: dict[int, list[tuple[int, float]]] = {n: [] for n in range(-1, len(tokens))}
        for node, parent in enumerate(draft.parents):
            listed[parent].append((tokens[node], draft.confidences[node]))
        last = draft.accepted_nodes[-1] if draft.accepted_nodes else -1
        if draft.listed_at != NOT_LISTED:
            listed[last].append((own[len(draft.accepted_nodes)], _UNLIKELY))
        return listed


def with_drafts(answer: Answer, recording: Recording) -> RecordedAnswer:
    """Return an answer with the drafts of a recorded one, which take turns."""
    drafts = recording.answers[answer.number % len(recording.answers)]
    return RecordedAnswer(**vars(answer), drafts=drafts)


def acceptance_length(answers: Sequence[Answer], num_draft_tokens: int, max_nodes: int) -> float:
    """Return the committed tokens per step if each answer is drafted at this length throughout."""
    num_steps = num_tokens = 0
    for answer in answers:
        place = 0
        while place < answer.num_tokens:
            tree = answer.guess(place, num_draft_tokens, max_nodes).tree
            own = answer.own[place : place + tree.num_nodes]
            place += 1 + len(follow(tree, own))
            num_steps += 1
        num_tokens += place
    return num_tokens / num_steps


@lru_cache
def typed_regime(length: float) -> Regime:
    """Return traffic with this acceptance length, in drafts of PAPER_DRAFT_TOKENS tokens.

    Right tokens drift as in drafts recorded on text. Raises ConfigError.
    """
    if not 1 <= length <= PAPER_DRAFT_TOKENS:
        raise ConfigError(f"--acceptance must be from 1 to {PAPER_DRAFT_TOKENS}, got {length:g}")
    low, high = _NEVER, -_NEVER
    for _ in range(_HALVINGS if length > 1 else 0):
        middle = (low + high) / 2
        answers = make_answers(_regime(middle), _NUM_ANSWERS)
        if acceptance_length(answers, PAPER_DRAFT_TOKENS, PAPER_DRAFT_TOKENS) < length:
            low = middle
        else:
            high = middle
    return _regime(low)


def _regime(mean: float) -> Regime:
    return Regime("typed", Text(mean, between=0.8, within=2.0, kept=0.5, is_even=True))


def write_recording(path: Path, recording: Recording) -> None:
    """Write a recording as lines of JSON: a header, then the answers."""
    header = {"drafter": recording.drafter, "source": recording.source}
    lines = [json.dumps(header)]
    for family, drafts in zip(recording.families, recording.answers, strict=True):
        packed = base64.b64encode(zlib.compress(b"".join(map(_pack, drafts)), 9)).decode()
        lines.append(json.dumps({"family": family, "drafts": packed}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pack(draft: RecordedDraft) -> bytes:
    stored = [min(round(-confidence * _STEPS), 255) for confidence in draft.confidences]
    parents = [parent + 1 for parent in draft.parents]
    accepted = draft.accepted_nodes
    return bytes([len(parents), *parents, *stored, len(accepted), *accepted, draft.listed_at])


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises ConfigError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: a recording has at most {_MOST_BYTES} bytes")
        header, *lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        answers = tuple(tuple(_unpack(line["drafts"])) for line in lines)
        families = tuple(str(line["family"]) for line in lines)
        recording = Recording(str(header["drafter"]), str(header["source"]), families, answers)
    except (OSError, ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        raise ConfigError(
            f"{path} is not a recording of `diffuspec plan record`: {error}"
        ) from error
    if not answers or not all(answers):
        raise ConfigError(f"{path}: a recording needs answers with drafts")
    return recording


def _unpack(packed: str) -> Iterator[RecordedDraft]:
    reader = zlib.decompressobj()
    data = reader.decompress(base64.b64decode(packed, validate=True), _MOST_DRAFT_BYTES)
    place = 0

    def take(count: int) -> bytes:
        nonlocal place
        if place + count > len(data):
            raise ValueError("a draft is cut off")
        place += count
        return data[place - count : place]

    while place < len(data):
        [size] = take(1)
        parents = tuple(parent - 1 for parent in take(size))
        confidences = tuple(-stored / _STEPS for stored in take(size))
        [count] = take(1)
        accepted = tuple(take(count))
        [listed_at] = take(1)
        if any(parent >= node for node, parent in enumerate(parents)) or any(
            node >= size for node in accepted
        ):
            raise ValueError("a draft is not a tree")
        yield RecordedDraft(parents, confidences, accepted, listed_at)

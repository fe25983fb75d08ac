"""Replay of a drafter over recorded answers: what it would have had accepted at each token.

An answer of the target is the ground truth for every drafter, so no target is needed, but for
drafters that read its hidden states. At each token the widest draft is made and compared with the
rest of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from diffuspec.algorithm.draft_tree import follow
from diffuspec.bench.planning.acceptance import NOT_LISTED, RecordedDraft
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import GREEDY
from diffuspec.core.types import MAX_ALTERNATIVES, Draft, DraftRequest, Prompt, TokenIds
from diffuspec.text.prompt import encode_prompt

NUM_DRAFT_TOKENS, MAX_NODES = 20, 32  # of the widest draft

_AT_ONCE = 8  # answers replayed side by side
_MOST_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class RecordedText:
    """A prompt and the target's answer to it."""

    family: str
    prompt: TokenIds
    token_ids: TokenIds  # at least one


def read_texts(path: Path, tokenizer: Any, limit: int | None) -> list[RecordedText]:
    """Read answers from lines of JSON; `limit`: the most of each family. Raises ConfigError.

    A line has `prompt_token_ids` and `token_ids`; or `messages`, or `prompt`, and the answer's
    `text`. `family` is optional.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{path}: answers may take at most {_MOST_BYTES} bytes")
    texts: list[RecordedText] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            text = _text(json.loads(line), tokenizer)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}, line {number}: must have prompt_token_ids and token_ids, or messages (or "
                f"prompt) and text: {error!r:.200}"
            ) from error
        num_like_it = sum(one.family == text.family for one in texts)
        if len(text.token_ids) and (limit is None or num_like_it < limit):
            texts.append(text)
    if not texts:
        raise ConfigError(f"{path} has no answers")
    return texts


def _text(row: dict[str, Any], tokenizer: Any) -> RecordedText:
    family = str(row.get("family", "all"))
    if "token_ids" in row:
        prompt, answer = np.array(row["prompt_token_ids"]), np.array(row["token_ids"])
        return RecordedText(family, prompt.astype(np.int32), answer.astype(np.int32))
    asked: Prompt = row["messages"] if "messages" in row else str(row["prompt"])
    prompt = encode_prompt(asked, tokenizer, None)
    answer = encode_prompt(str(row["text"]), tokenizer, None, adds_special_tokens=False)
    return RecordedText(family, prompt, answer)


async def record_texts(
    drafter: Drafter,
    texts: Sequence[RecordedText],
    drafter_weight: float,
    on_text: Callable[[RecordedText], None] = lambda _: None,
) -> tuple[tuple[RecordedDraft, ...], ...]:
    """Return the widest draft at each token of each answer. Raises the drafter's errors.

    `on_text` is called as an answer ends.
    """
    drafts: list[list[RecordedDraft]] = [[] for _ in texts]
    waiting = iter(range(len(texts)))
    running = [*islice(waiting, _AT_ONCE)]
    while running:
        asked = [_request(texts[n], n, len(drafts[n]), drafter_weight) for n in running]
        for number, draft in zip(running, await drafter.draft(asked), strict=True):
            rest = texts[number].token_ids[len(drafts[number]) :]
            drafts[number].append(compare(draft, rest.tolist()))
        for number in [n for n in running if len(drafts[n]) == len(texts[n].token_ids)]:
            await drafter.release(_name(number))
            running.remove(number)
            running += islice(waiting, 1)
            on_text(texts[number])
    return tuple(map(tuple, drafts))


def _name(number: int) -> str:
    return f"record-{number}"


def _request(text: RecordedText, number: int, place: int, drafter_weight: float) -> DraftRequest:
    return DraftRequest(
        request_id=_name(number),
        prefix=np.concatenate([text.prompt, text.token_ids[:place]]),
        num_draft_tokens=NUM_DRAFT_TOKENS,
        tree_shape="best_first",
        max_nodes=MAX_NODES,
        drafter_weight=drafter_weight,
        sampling=GREEDY,
        num_alternatives=MAX_ALTERNATIVES,
        num_prompt_tokens=len(text.prompt),
    )


def compare(draft: Draft, rest: Sequence[int]) -> RecordedDraft:
    """Compare a draft with the rest of the answer."""
    tree = draft.tree
    accepted = follow(tree, rest)
    last = accepted[-1] if accepted else -1
    listed = draft.alternatives[last + 1] if draft.alternatives else ()
    following = rest[len(accepted)] if len(accepted) < len(rest) else None
    places: Iterator[int] = (n for n, (token, _) in enumerate(listed) if token == following)
    return RecordedDraft(tree.parents, draft.confidences, tuple(accepted), next(places, NOT_LISTED))

"""Replay of a drafter over recorded answers: what it would have had accepted at each token.

An answer of the target is the ground truth for every drafter, so no target is needed, but for
drafters that read its hidden states. At each token the widest draft is made and compared with the
rest of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from diffuspec.algorithm.draft_tree import follow
from diffuspec.bench.machine import cpu_model
from diffuspec.bench.output import progress
from diffuspec.bench.planning.acceptance import (
    NOT_LISTED,
    RecordedDraft,
    Recording,
    write_recording,
)
from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import GREEDY, PLAIN, SamplingParams
from diffuspec.core.types import MAX_ALTERNATIVES, Draft, DraftRequest, Prompt, TokenIds
from diffuspec.core.validation import validate
from diffuspec.core.version import own_version
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.draft_server.service import check_kind, load_target
from diffuspec.drafters import load_drafter
from diffuspec.engine.engine import Engine
from diffuspec.pairs import Pair, fill_in_draft_server, find_pair
from diffuspec.text.prompt import encode_prompt

NUM_DRAFT_TOKENS, MAX_NODES = 20, 32  # the widest draft has these

_AT_ONCE = 8  # answers replayed side by side
_MOST_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class RecordedText:
    """A prompt and the target's answer to it."""

    family: str
    prompt: TokenIds
    token_ids: TokenIds  # at least one


async def record_file(
    section: Mapping[str, Any], answers: Path | None, limit: int | None, max_tokens: int, out: Path
) -> float:
    """Record a drafter, given as a draft server's section, and write it to `out`.

    Returns the acceptance length of the widest drafts. `limit`: answers of each family. Without
    `answers`, the pair named by `preset` answers its own questions. Raises ConfigError,
    ModelLoadError, NgramError.
    """
    config = validate(DraftServerConfig, fill_in_draft_server(section), ["preset"])
    check_kind(config)
    target, tokenizer = load_target(config)
    if answers is not None:
        texts = read_texts(answers, tokenizer, limit)
    elif "preset" in section:
        texts = _own_texts(find_pair(section["preset"], "--pair"), limit, max_tokens)
    else:
        raise ConfigError("--answers is missing: a pair alone can answer its own questions")
    drafter = load_drafter(config.drafter, config.search, target)
    weight = 0.5 if config.drafter_weight == "adaptive" else config.drafter_weight
    try:
        with progress(len(texts)) as advance:
            drafts = await record_texts(drafter, texts, weight, lambda text: advance(text.family))
    finally:
        drafter.close()
    name = str(section.get("preset") or config.drafter.kind)
    source = f"diffuspec plan record, {own_version()}, {cpu_model()}"
    recording = Recording(name, source, tuple(text.family for text in texts), drafts)
    write_recording(out, recording)
    return recorded_length(recording)


def _own_texts(pair: Pair, limit: int | None, max_tokens: int) -> list[RecordedText]:
    questions = first_per_family(load_questions(pair.questions), limit)
    with Engine.from_config(pair.load_config()) as engine:
        prompts = [engine.encode([{"role": "user", "content": q.turns[0]}]) for q in questions]
        answers = engine.generate(
            [prompt.tolist() for prompt in prompts], SamplingParams(max_tokens=max_tokens), PLAIN
        )
    return [
        RecordedText(question.family, prompt, np.array(answer.token_ids, np.int32))
        for question, prompt, answer in zip(questions, prompts, answers, strict=True)
        if answer.token_ids
    ]


def recorded_length(recording: Recording) -> float:
    """Return the committed tokens per step of the widest drafts, over all answers."""
    num_steps = num_tokens = 0
    for drafts in recording.answers:
        place = 0
        while place < len(drafts):
            place += 1 + len(drafts[place].accepted_nodes)
            num_steps += 1
        num_tokens += len(drafts)
    return num_tokens / num_steps


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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: must have prompt_token_ids and token_ids, or messages (or "
                f"prompt) and text: {error!r:.200}"
            ) from error
        num_like_it = sum(other.family == text.family for other in texts)
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

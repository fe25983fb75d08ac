"""SAM decoding drafts what followed the longest match; small examples, worked by hand."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffuspec.core.config import SearchConfig
from diffuspec.core.drafter_config import SuffixAutomatonConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import EMPTY_DRAFT
from diffuspec.drafters import Target, load_drafter
from diffuspec.drafters.samd import SuffixAutomatonDrafter
from diffuspec.pairs.tiny import TARGET
from tests.support.draft_requests import draft_request as request

EOS = 9
TEXTS = [[*range(10, 20), 3, 4], [*range(10, 20), 3, 5], [*range(10, 20), 6]]
HERE = [*range(10, 20)]  # ten tokens that match in the texts


def drafter(texts: list[list[int]] | None = None, **settings: Any) -> SuffixAutomatonDrafter:
    config = SuffixAutomatonConfig.model_validate(settings)
    return SuffixAutomatonDrafter(config, (EOS,), 2, texts or [])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [([], (6, 7, 8)), ([6, 5, 7], (8,)), ([6, 7, 8], ())],  # nothing beyond its end
)
async def test_a_prediction_is_drafted(answer: list[int], expected: tuple[int, ...]) -> None:
    asked = replace(
        request([1, 2, *answer]), num_prompt_tokens=2, prediction=np.array([6, 7, 8], np.int32)
    )
    [draft] = await drafter().draft([asked])
    assert draft.tree.token_ids == expected


@pytest.mark.parametrize(
    ("prefix", "settings", "fields", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 2], {}, {}, (3, 4, 5, 6, 7)),  # 1 + 4 * 1 tokens
        ([1, 2, 3, 4, 5, 6, 7, 2], {"draft_tokens_per_match": 1.5}, {}, (3, 4)),
        ([1, 2, 3, 4, 5, 6, 7, 2], {"num_draft_tokens": 3}, {}, (3, 4, 5)),
        ([1, 2, 3, 4, 5, 6, 7, 2], {}, {"num_draft_tokens": 2}, (3, 4)),
        ([1, 2, 3, 4, 5, 6, 7, 2], {}, {"max_nodes": 1}, (3,)),
        ([1, 2, 7, 1, 2, 8, 1, 2], {}, {}, (7, 1, 2, 8, 1, 2)),  # the earliest of two places
        ([1, 2, 3], {}, {}, ()),
        ([2, EOS, 3, 2], {}, {}, (EOS,)),
        ([2, EOS, 3, 2], {}, {"ignore_eos": True}, (EOS, 3, 2)),
    ],
)
async def test_what_followed_the_longest_match_is_drafted(
    prefix: list[int], settings: Any, fields: Any, expected: tuple[int, ...]
) -> None:
    [draft] = await drafter(**settings).draft([request(prefix, **fields)])
    assert draft.tree.token_ids == expected
    assert draft.tree.parents == tuple(range(-1, len(expected) - 1))


async def test_a_hypothetical_prefix_leaves_no_trace() -> None:
    """Prefixes of one request, in any order, are drafted for as by a new drafter."""
    prefix = [1, 2, 3, 1, 2]
    prefixes = [prefix, [*prefix, 3, 1], [*prefix, 4, 2], [*prefix, 3], [7, 8, 7], [*prefix, 4]]
    used = drafter()
    drafts = await used.draft([request(one) for one in prefixes])
    for one, found in zip(prefixes, drafts, strict=True):
        [alone] = await drafter().draft([request(one)])
        assert (found.tree, found.confidences) == (alone.tree, alone.confidences)


async def test_only_as_many_requests_are_kept_as_may_run() -> None:
    one = drafter()
    await one.draft([request([1, 2, 1], name=name) for name in "abc"])
    assert one._own.request_ids == ["b", "c"]
    await one.release("b")
    await one.release("unknown")
    assert one._own.request_ids == ["c"]


async def test_given_texts_grow_a_tree_of_what_followed_most_often() -> None:
    [draft] = await drafter(TEXTS).draft([request([1, *HERE])])
    assert draft.tree.token_ids == (3, 6, 4, 5), "the likeliest to be reached first"
    assert draft.tree.parents == (-1, -1, 0, 0)
    three, six, four, five = draft.confidences
    assert three - six == pytest.approx(math.log(2)) and four == five < 0


@pytest.mark.parametrize(("num_matched", "is_drafted"), [(5, False), (6, True)])
async def test_a_match_in_given_texts_has_to_be_longer_by_a_bias(
    num_matched: int, is_drafted: bool
) -> None:
    [draft] = await drafter(TEXTS).draft([request([0, *HERE[-num_matched:]])])
    assert (draft.tree.num_nodes > 0) == is_drafted


async def test_nothing_is_drafted_beyond_a_given_text() -> None:
    [draft] = await drafter([HERE, HERE]).draft([request(HERE)])
    assert draft.tree == EMPTY_DRAFT.tree


async def test_given_texts_are_read_with_the_tokenizer_of_the_target(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"token_ids": {[*HERE, 3, 4]}}}\n')
    config = SuffixAutomatonConfig(texts=file, max_text_tokens=11)
    info = TargetInfo(vocab_size=50, max_model_len=64, max_sequences=2, eos_token_ids=(0,))
    loaded = load_drafter(config, SearchConfig(), Target(info, None, TARGET))
    [draft] = await loaded.draft([request(HERE)])
    assert draft.tree.token_ids == (3,), "the eleventh token is the last one read"
    with pytest.raises(ConfigError, match="needs the directory of the target"):
        load_drafter(config, SearchConfig(), Target(info, None))


async def test_others_use_the_event_loop_while_a_long_prompt_is_read() -> None:
    num_turns = 0

    async def others() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    tokens = np.random.default_rng(0).integers(10, 50, 4000).tolist()
    one = drafter()
    for prompt in (tokens[:2000], tokens[:2010], tokens[::-1][:2000]):  # the last begins otherwise
        running = asyncio.create_task(others())
        num_before = num_turns
        [draft] = await one.draft([request(prompt)])
        running.cancel()
        assert draft.tree == (await drafter().draft([request(prompt, name="b")]))[0].tree
        assert (num_turns - num_before >= 7) == (len(prompt) == 2000)

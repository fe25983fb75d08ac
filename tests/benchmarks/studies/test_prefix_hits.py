"""Drafts are the same whether the target read a prompt, found it in its cache, or lost its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies.prefix_hits import DEFAULT, OTHERS, compare, make_engine
from diffuspec.core.types import Prompt
from diffuspec.pairs import tiny
from tests.support.heads import save_eagle3

PROMPTS: list[Prompt] = [
    [{"role": "user", "content": text}]
    for text in (
        "Lisa is faster than Adam. Adam is faster than Lucas. Who is the fastest?",
        "Tell me a short story about an owl named Rex and a ring in a forest.",
        "Adam wants to work on Monday and to cook on Tuesday. Write this as a plan.",
    )
]


@pytest.mark.slow
async def test_drafts_do_not_depend_on_what_the_cache_holds(tmp_path: Path) -> None:
    save_eagle3(tmp_path, 192, 4096)
    heads = {kind: OTHERS[kind] for kind in tiny.HEADS}
    heads["eagle3"] = {"kind": "eagle3", "path": tmp_path}
    same = {}
    async with make_engine(heads) as engine:
        for kind in (DEFAULT, *heads):
            read, found, lost = await compare(engine, kind, PROMPTS, 8)
            assert found.num_cached_tokens > read.num_cached_tokens
            assert read.token_ids == found.token_ids == lost.token_ids
            assert sum(map(bool, read.drafts)) > len(PROMPTS), kind
            same[kind] = read.drafts == found.drafts, read.drafts == lost.drafts
    assert same == dict.fromkeys((DEFAULT, *heads), (True, True))

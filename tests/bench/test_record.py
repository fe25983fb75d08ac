"""The replay of a drafter over recorded answers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.bench.planning.acceptance import NOT_LISTED, RecordedDraft, Recording
from diffuspec.bench.record import (
    RecordedText,
    compare,
    read_texts,
    record_texts,
    recorded_length,
)
from diffuspec.core.errors import ConfigError
from diffuspec.core.types import Draft, DraftRequest, DraftTree


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_a_draft_is_compared_as_far_as_the_answer_goes():
    tree = DraftTree((7, 8, 9), (-1, -1, 1))
    listed = (((7, -1.0), (8, -1.0)), (), ((9, -1.0),), ((3, -1.0), (4, -1.0)))
    draft = Draft(tree, (-0.5, -0.5, -0.1), 3, alternatives=listed)
    right = compare(draft, [8, 9, 4])
    assert right == RecordedDraft(tree.parents, draft.confidences, (1, 2), 1)
    assert compare(draft, [8, 9]).listed_at == NOT_LISTED
    assert compare(draft, [5]).accepted_nodes == ()


class Counting:
    """Drafts the next two numbers."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.most = 0

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.most = max(self.most, len(requests))
        lasts = [int(request.prefix[-1]) for request in requests]
        return [Draft(chain((n + 1, n + 2)), (-0.1, -0.1), 2) for n in lasts]

    async def release(self, request_id: str) -> None:
        self.released.append(request_id)


async def test_every_answer_is_replayed_at_each_of_its_tokens():
    texts = [RecordedText("qa", ids(0), ids(*range(1, 3 + n))) for n in range(20)]
    drafter = Counting()
    drafts = await record_texts(drafter, texts, 0.5)
    assert [len(own) for own in drafts] == [len(text.token_ids) for text in texts]
    assert len(set(drafter.released)) == 20
    assert drafter.most == 8
    recording = Recording("counting", "a test", ("qa",) * 20, drafts)
    assert 2 < recorded_length(recording) <= 3


def test_answers_are_read_as_token_ids(tmp_path):
    path = tmp_path / "answers.jsonl"
    row = {"prompt_token_ids": [1, 2], "token_ids": [3], "family": "qa"}
    path.write_text("\n".join(json.dumps(row) for _ in range(3)))
    [text] = read_texts(path, None, 1)
    assert (text.family, text.prompt.tolist(), text.token_ids.tolist()) == ("qa", [1, 2], [3])


@pytest.mark.parametrize("line", ["{}", "[]", '{"token_ids": [1]}'])
def test_what_is_no_answer_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "answers.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match="line 1: must have prompt_token_ids"):
        read_texts(path, None, None)

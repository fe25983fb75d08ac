"""A causal LM as drafter: a copy of the target is accepted whole, and batches draft as alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffuspec.core.config import TargetConfig
from diffuspec.core.drafter_config import AutoregressiveConfig
from diffuspec.core.errors import DrafterError, InvalidRequestError, ModelLoadError, VocabularyError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, DraftRequest, VerifyRequest
from diffuspec.models.autoregressive import AutoregressiveDrafter
from diffuspec.models.target import CausalTarget
from tests.support.draft_requests import draft_request
from tests.support.models import edit_json

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]
GREEDY = SamplingParams(ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, seed=5, ignore_eos=True)
PENALISED = replace(DRAWN, repetition_penalty=1.3, frequency_penalty=0.4)


@pytest.fixture(scope="module")
def target(target_path: Callable[[str], Path]) -> Iterator[CausalTarget]:
    target = CausalTarget.load(
        TargetConfig(path=target_path("qwen2"), device="cpu", max_sequences=2)
    )
    yield target
    target.close()


def load(info: TargetInfo, path: Path, **settings: Any) -> AutoregressiveDrafter:
    return AutoregressiveDrafter.load(
        AutoregressiveConfig(path=path, device="cpu", **settings), info
    )


@pytest.fixture(scope="module")
def copy(
    target: CausalTarget, target_path: Callable[[str], Path]
) -> Iterator[AutoregressiveDrafter]:
    drafter = load(target.info, target_path("qwen2"), min_confidence=0.0)
    yield drafter
    drafter.close()


def request(
    prefix: Sequence[int], sampling: SamplingParams = GREEDY, name: str = "a", length: int = 9
) -> DraftRequest:
    found = draft_request(prefix, length, name=name, shape="path")
    return replace(found, sampling=sampling, num_prompt_tokens=len(PROMPT))


def with_config(path: Path, folder: Path, **changes: object) -> Path:
    """Return a copy of a model directory with other settings in its config.json; None: without."""
    shutil.copytree(path, folder / "copy")
    edit_json(folder / "copy" / "config.json", **changes)
    return folder / "copy"


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, PENALISED], ids=["greedy", "drawn", "shaped"])
async def test_a_copy_of_the_target_is_accepted_whole(
    target: CausalTarget, copy: AutoregressiveDrafter, sampling: SamplingParams
) -> None:
    prefix = PROMPT
    for _ in range(3):
        [draft] = await copy.draft([request(prefix, sampling)])
        tokens = np.array(prefix, np.int32)
        [verdict] = await target.verify(
            [VerifyRequest("a", tokens, len(PROMPT), draft.tree, sampling)]
        )
        assert verdict.num_accepted_tokens == draft.num_tokens_before_eos == 9
        prefix = [*prefix, *verdict.token_ids]
    await target.release("a")


async def test_a_batch_is_drafted_as_each_request_alone(copy: AutoregressiveDrafter) -> None:
    """Hypothetical prefixes of one request too, and more requests than may run."""
    requests = [
        request(PROMPT, DRAWN, "x", 4),
        request([*PROMPT, 7], GREEDY, "y"),
        request([*PROMPT, 7, 8], GREEDY, "y", 1),
        request(PROMPT[:3], GREEDY, "z"),
        request([*PROMPT, 9], GREEDY, "y"),
    ]
    together = await copy.draft(requests)
    for one, draft in zip(requests, together, strict=True):
        [alone] = await copy.draft([replace(one, request_id="alone")])
        assert draft.tree == alone.tree and draft.tree.num_nodes == one.num_draft_tokens
        assert draft.confidences == pytest.approx(alone.confidences, abs=1e-4)


async def test_a_draft_ends_with_the_answer_and_where_the_drafter_is_unsure(
    target: CausalTarget, copy: AutoregressiveDrafter, target_path: Callable[[str], Path]
) -> None:
    [whole] = await copy.draft([request(PROMPT)])
    lowest = min(range(9), key=lambda place: whole.confidences[place])
    limit = float(np.exp(whole.confidences[lowest])) + 1e-4
    first = next(i for i, one in enumerate(whole.confidences) if np.exp(one) < limit)
    unsure = load(target.info, target_path("qwen2"), min_confidence=limit)
    [draft] = await unsure.draft([request(PROMPT)])
    assert draft.tree.token_ids == whole.tree.token_ids[: first + 1]
    unsure.close()
    info = replace(target.info, eos_token_ids=(whole.tree.token_ids[2],))
    ending = next(i for i, t in enumerate(whole.tree.token_ids) if t == whole.tree.token_ids[2])
    ends = load(info, target_path("qwen2"), min_confidence=0.0)
    [draft] = await ends.draft([request(PROMPT, SamplingParams())])
    ends.close()
    assert draft.tree.token_ids == whole.tree.token_ids[: ending + 1]
    assert draft.num_tokens_before_eos == ending


async def test_rows_are_shared_only_among_requests_with_the_same_salt(
    copy: AutoregressiveDrafter,
) -> None:
    drafts = await copy.draft([request(PROMPT, replace(GREEDY, cache_salt="x"), "salted")])
    cache, prefix = copy.runner.cache, request(PROMPT).prefix
    cache.begin_step()
    assert cache.acquire("salted", prefix, salt="x").length == len(PROMPT) - 1
    assert cache.acquire("other", prefix, salt="y").length == 0
    assert drafts[0].tree == (await copy.draft([request(PROMPT)]))[0].tree


async def test_nothing_is_drafted_beyond_the_context(copy: AutoregressiveDrafter) -> None:
    size = copy.runner.max_len
    nearly, full = (PROMPT * size)[: size - 2], (PROMPT * size)[:size]
    short, none = await copy.draft([request(nearly, name="x"), request(full, name="y")])
    assert short.tree.num_nodes == 2 and none.tree == EMPTY_TREE


async def test_only_the_beginning_and_the_end_of_a_long_prompt_are_read(
    target: CausalTarget, copy: AutoregressiveDrafter, target_path: Callable[[str], Path]
) -> None:
    prompt = [*range(10, 40)]
    reader = load(target.info, target_path("qwen2"), min_confidence=0.0, context_tokens=16)
    for answer in ([], [50, 51], [50, 51, 52]):
        asked = replace(request([*prompt, *answer]), num_prompt_tokens=len(prompt))
        [expected] = await copy.draft([request([*prompt[:4], *prompt[-12:], *answer])])
        [found] = await reader.draft([asked])
        assert found.tree == expected.tree
    assert reader.runner.max_len < copy.runner.max_len
    reader.close()


async def test_a_block_causal_diffusion_lm_drafts_as_the_causal_lm_of_its_weights(
    target: CausalTarget, drafter_path: Path, tmp_path: Path
) -> None:
    causal = with_config(drafter_path, tmp_path, mask_token_id=None, diffusion_attention=None)
    drafts = []
    for path in (drafter_path, causal):
        drafter = load(target.info, path, min_confidence=0.0)
        drafts += await drafter.draft([request(PROMPT, DRAWN)])
        drafter.close()
    assert drafts[0].tree == drafts[1].tree and drafts[0].tree.num_nodes == 9


async def test_what_cannot_draft_for_the_target_is_refused(
    target: CausalTarget,
    target_path: Callable[[str], Path],
    drafter_path: Path,
    tmp_path: Path,
    copy: AutoregressiveDrafter,
) -> None:
    with pytest.raises(ModelLoadError, match="drafter of kind sps must be a causal LM"):
        load(target.info, with_config(drafter_path, tmp_path, diffusion_attention="full"))
    info = replace(target.info, vocab_size=10_000)
    config = AutoregressiveConfig(path=target_path("qwen2"), device="cpu")
    with pytest.raises(VocabularyError, match="they must share a tokenizer"):
        AutoregressiveDrafter.load(config, info)
    with pytest.raises(InvalidRequestError, match="empty prefix"):
        await copy.draft([request([])])
    with pytest.raises(InvalidRequestError, match="must be below 258, got 500"):
        await copy.draft([request([500])])


async def test_a_forward_that_fails_is_an_error_of_the_drafter(
    copy: AutoregressiveDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(copy.runner, "forward", fail)
    with pytest.raises(DrafterError, match="forward pass failed: out of memory"):
        await copy.draft([request(PROMPT)])

"""The drafter: every row is read where an independent reference reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.algorithm.sampling import gumbel_noise
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import DrafterError, InvalidRequestError, ModelLoadError, VocabularyError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest, Lattice
from diffuspec.models.attention.segment import Segment
from diffuspec.models.diffusion import DiffusionDrafter
from tests.support.diffusion_reference import assert_lattice, refined
from tests.support.draft_requests import draft_request
from tests.support.models import (
    MASK_TOKEN_ID,
    MAX_POSITIONS,
    NUM_KNOWN_IDS,
    VOCAB_SIZE,
    edit_json,
    make_drafter_model,
)

K = 6
EOS = 2
PREFIX = np.random.default_rng(3).integers(3, NUM_KNOWN_IDS, 40).tolist()
TARGET = TargetInfo(NUM_KNOWN_IDS, MAX_POSITIONS, max_sequences=2, eos_token_ids=(EOS,))
KINDS = ("block_causal", "full", "dream", "llada")

SaveDrafter = Callable[[str], Path]
Load = Callable[..., DiffusionDrafter]


@pytest.fixture
def load(save_drafter: SaveDrafter) -> Iterator[Load]:
    """Load drafters by their kind or from a directory, and close them after the test.

    They give every candidate of every position, so that a lattice shows the whole distribution.
    """
    with contextlib.ExitStack() as stack:

        def load(
            kind: str | Path, target: TargetInfo = TARGET, **options: object
        ) -> DiffusionDrafter:
            path = kind if isinstance(kind, Path) else save_drafter(kind)
            options = {"candidate_mass": 1.0, "max_candidates": VOCAB_SIZE, **options}
            config = DiffuSpecConfig.model_validate({"path": path, "device": "cpu", **options})
            drafter = DiffusionDrafter.load(config, target)
            stack.callback(drafter.close)
            return drafter

        yield load


def request(
    prefix: Sequence[int], request_id: str = "a", k: int = K, **sampling: Any
) -> DraftRequest:
    return draft_request(prefix, k, 32, request_id, "path", **sampling)


@torch.inference_mode()
def reference_logits(
    kind: str, prefix: Sequence[int], block: Sequence[int] = (MASK_TOKEN_ID,) * K
) -> torch.Tensor:
    """Logits of the draft positions, by the definition: row n predicts token n + 1; LLaDA's, n.

    A block-causal drafter does not see the last mask, whose row would predict nothing.
    """
    model = make_drafter_model()
    num_positions = len(block)
    if kind == "block_causal" and block[-1] == MASK_TOKEN_ID:
        block = block[:-1]
    length = len(prefix) + len(block)
    visible = torch.ones(length, length, dtype=torch.bool)
    if kind == "block_causal":
        visible[: len(prefix)] = visible.tril()[: len(prefix)]
    token_ids = torch.tensor([[*prefix, *block]])
    logits = model(token_ids, attention_mask=visible[None, None]).logits[0]
    first = len(prefix) - (kind != "llada")
    predicted = logits[first : first + num_positions].clone()
    predicted[:, NUM_KNOWN_IDS:] = -torch.inf
    predicted[:, MASK_TOKEN_ID] = -torch.inf
    return predicted


def assert_drafted(
    kind: str, prefixes: Sequence[Sequence[int]], lattices: Sequence[Lattice]
) -> None:
    for prefix, lattice in zip(prefixes, lattices, strict=True):
        assert_lattice(lattice, reference_logits(kind, prefix), EOS)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_first_draft_equals_the_reference(load: Load, kind: str, prefix_cache: bool) -> None:
    drafter = load(kind, prefix_cache=prefix_cache)
    for length in (40, 3, 1):
        lattices = await drafter.lattices([request(PREFIX[:length], f"{length}")])
        assert_drafted(kind, [PREFIX[:length]], lattices)


@pytest.mark.parametrize(
    ("kind", "prefix_cache"), [("block_causal", True), ("block_causal", False), ("dream", False)]
)
async def test_growing_prefix_equals_the_reference(
    load: Load, kind: str, prefix_cache: bool
) -> None:
    drafter = load(kind, prefix_cache=prefix_cache)
    for length in (10, 11, 11, 15, 14, 40):
        batch = [request(PREFIX[:length]), request(PREFIX[20:], "b")]
        assert_drafted(kind, [PREFIX[:length], PREFIX[20:]], await drafter.lattices(batch))


async def test_block_causal_prefix_is_computed_once(load: Load) -> None:
    drafter = load("block_causal")
    await drafter.lattices([request(PREFIX[:30])])
    assert drafter.runner.cache.acquire("a", np.array(PREFIX, np.int32)).length == 30


async def test_rows_are_shared_only_among_requests_with_the_same_salt(load: Load) -> None:
    drafter = load("block_causal")
    cache, prefix = drafter.runner.cache, np.array(PREFIX, np.int32)
    for name, salt in (("a", "x"), ("b", "y")):
        found = await drafter.lattices([request(PREFIX[:30], name, cache_salt=salt)])
        assert_drafted("block_causal", [PREFIX[:30]], found)
    cache.begin_step()
    tables = [cache.acquire(name, prefix, salt=salt) for name, salt in (("a", "x"), ("b", "z"))]
    assert [table.length for table in tables] == [30, 0]


async def test_hypotheses_share_the_rows_of_equal_tokens(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = load("block_causal")
    await drafter.lattices([request(PREFIX)])
    num_rows = []
    forward = drafter.runner.forward_columns

    def spy(segments: Sequence[Segment]) -> torch.Tensor:
        num_rows.append(sum([segment.num_rows for segment in segments]))
        return forward(segments)

    monkeypatch.setattr(drafter.runner, "forward_columns", spy)
    prefixes = [[*PREFIX, *tokens] for tokens in ([5], [7, 9], [7, 9, 4], [7, 8], [5])]
    assert_drafted("block_causal", prefixes, await drafter.lattices(list(map(request, prefixes))))
    assert num_rows == [len([5, 7, 9, 4, 8]) + len(prefixes) * (K - 1)]


async def test_a_long_prefix_is_prefilled_in_pieces_while_others_are_drafted(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuspec.models.diffusion.MAX_PREFILL_ROWS", 16)
    drafter = load("block_causal")
    hypothesis = [*PREFIX, 7]
    batch = [request(PREFIX), request(hypothesis), request(PREFIX[:9], "short")]
    for length in (16, 32):
        *behind, short = await drafter.lattices(batch)
        assert [lattice.num_positions for lattice in behind] == [0, 0]
        assert_drafted("block_causal", [PREFIX[:9]], [short])
        assert drafter.runner.cache.acquire("a", np.array(PREFIX, np.int32)).length == length
    prefixes = [PREFIX, hypothesis, PREFIX[:9]]
    assert_drafted("block_causal", prefixes, await drafter.lattices(batch))


async def test_dream_cache_is_refreshed_in_time(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = load("dream", refresh_every=8)
    starts: list[int] = []
    forward = drafter.runner.forward_columns

    def spy(segments: Sequence[Segment]) -> torch.Tensor:
        starts.extend(segment.start for segment in segments)
        return forward(segments)

    monkeypatch.setattr(drafter.runner, "forward_columns", spy)
    for length in range(10, 27):
        lattices = await drafter.lattices([request(PREFIX[:length])])
        if length in (10, 18, 26):
            assert_drafted("dream", [PREFIX[:length]], lattices)
    assert starts == [0, *range(10, 17), 0, *range(18, 25), 0]


async def test_dream_cache_feeds_new_tokens_and_masks_over_old_states(load: Load) -> None:
    """What the approximation is, by the reference model's own cache."""
    drafter = load("dream")
    await drafter.lattices([request(PREFIX[:20])])
    [lattice] = await drafter.lattices([request(PREFIX[:23])])
    model = make_drafter_model()
    masks = [MASK_TOKEN_ID] * K
    with torch.inference_mode():
        old = torch.tensor([PREFIX[:20] + masks])
        mask = torch.zeros(1, 1, 20 + K, 20 + K)
        cache = model(old, attention_mask=mask, use_cache=True).past_key_values
        cache.crop(-K)
        new = torch.tensor([PREFIX[20:23] + masks])
        mask = torch.zeros(1, 1, 3 + K, 23 + K)
        logits = model(new, attention_mask=mask, past_key_values=cache).logits[0, 2:-1]
    logits = logits.clone()
    logits[:, NUM_KNOWN_IDS:] = -torch.inf
    assert_lattice(lattice, logits, EOS)


async def test_first_draft_token_is_read_at_the_last_prefix_token(load: Load) -> None:
    """The shift: for a block-causal drafter, position 1 is plain next-token prediction."""
    drafter = load("block_causal")
    [lattice] = await drafter.lattices([request(PREFIX)])
    with torch.inference_mode():
        logits = make_drafter_model()(torch.tensor([PREFIX])).logits[0, -1]
    logits = logits.clone()
    logits[NUM_KNOWN_IDS:] = -torch.inf
    assert int(lattice.token_ids[0, 0]) == int(logits.argmax())
    assert lattice.logprobs[0, 0] == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)


@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_hypotheses_in_one_forward_equal_each_alone(
    load: Load, kind: str, prefix_cache: bool
) -> None:
    prefixes = [PREFIX[:20] + tail for tail in ([8], [5, 6, 7], [5, 6, 9], [5], [11, 12])]
    drafter = load(kind, prefix_cache=prefix_cache)
    await drafter.lattices([request(PREFIX[:20])])
    before = drafter.runner.num_forwards
    hypotheses = [request(prefix, k=K + i) for i, prefix in enumerate(prefixes)]
    together = await drafter.lattices([*hypotheses, request(PREFIX[:7], "other")])
    assert drafter.runner.num_forwards == before + 1
    for hypothesis, lattice in zip(hypotheses, together, strict=False):
        alone = load(kind, prefix_cache=prefix_cache)
        await alone.lattices([request(PREFIX[:20])])
        [expected] = await alone.lattices([hypothesis])
        assert lattice.token_ids[:, :3].tolist() == expected.token_ids[:, :3].tolist()
        np.testing.assert_allclose(lattice.logprobs[:, :3], expected.logprobs[:, :3], atol=1e-4)
    assert_drafted(kind, [PREFIX[:7]], together[-1:])


async def test_many_hypotheses_are_spread_over_segments(
    load: Load, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuspec.models.diffusion.NUM_SCRATCH_ROWS", 20)
    drafter = load(kind, replace(TARGET, max_model_len=100), prefix_cache=False)
    prefixes = [
        [*PREFIX[:20], first, *PREFIX[:length]]
        for first, length in ((3, 0), (3, 2), (4, 5), (3, 1), (9, 0))
    ]
    lattices = await drafter.lattices([request(prefix) for prefix in prefixes])
    assert_drafted(kind, prefixes, lattices)


async def test_prefixes_of_one_request_may_have_nothing_in_common(load: Load, kind: str) -> None:
    drafter = load(kind)
    prefixes = [PREFIX[:9], PREFIX[1:20], [77], *([[5 + i, *PREFIX] for i in range(12)])]
    lattices = await drafter.lattices([request(prefix) for prefix in prefixes])
    assert_drafted(kind, prefixes, lattices)


async def test_more_requests_than_slots_in_one_batch(load: Load, kind: str) -> None:
    drafter = load(kind)
    prefixes = [PREFIX[i:20] for i in range(5)]
    batch = [request(prefix, f"{i}") for i, prefix in enumerate(prefixes)]
    assert_drafted(kind, prefixes, await drafter.lattices(batch))


async def test_refinement_fixes_the_most_confident_masks_first(load: Load, kind: str) -> None:
    k, num_steps = 7, 3
    drafter = load(kind, num_refinement_steps=num_steps, prefix_cache=False)
    [lattice] = await drafter.lattices([request(PREFIX, k=k)])
    expected = refined(lambda block: reference_logits(kind, PREFIX, block), k, num_steps)
    assert_lattice(lattice, expected, EOS)
    assert drafter.runner.num_forwards == num_steps


async def test_sampled_requests_are_drafted_with_the_targets_own_noise(load: Load) -> None:
    drafter = load("block_causal")
    [lattice] = await drafter.lattices([request(PREFIX, temperature=0.8, seed=11)])
    positions = range(len(PREFIX), len(PREFIX) + K)
    noise = gumbel_noise(11, positions, VOCAB_SIZE, "cpu")
    assert_lattice(lattice, reference_logits("block_causal", PREFIX) / 0.8 + noise, EOS)


async def test_prefix_beyond_the_drafters_context_is_cut(
    load: Load, save_drafter: SaveDrafter
) -> None:
    edit_json(save_drafter("block_causal") / "config.json", max_position_embeddings=130)
    drafter = load("block_causal")
    prefix = np.random.default_rng(4).integers(3, NUM_KNOWN_IDS, 140).tolist()
    starts = []
    for length in range(122, 132):
        lattices = await drafter.lattices([request(prefix[:length])])
        limit = 130 - K
        starts.append(0 if length <= limit else 62 * -(-(length - limit) // 62))
        assert_drafted("block_causal", [prefix[starts[-1] : length]], lattices)
    assert starts == [0] * 3 + [62] * 7


async def test_only_the_beginning_and_the_end_of_a_long_prompt_are_read(
    load: Load, kind: str
) -> None:
    drafter = load(kind, context_tokens=16)
    for length in (30, 31, 34):
        lattices = await drafter.lattices([request(PREFIX[:length], num_prompt_tokens=30)])
        if length == 30 or kind == "block_causal":  # the cache is exact
            assert_drafted(kind, [PREFIX[:4] + PREFIX[18:length]], lattices)
    assert drafter.runner.max_len < load(kind).runner.max_len


async def test_a_directory_may_state_how_much_of_a_prompt_is_read(
    load: Load, save_drafter: SaveDrafter
) -> None:
    edit_json(save_drafter("block_causal") / "config.json", draft_context_tokens=16)
    asked = request(PREFIX[:30], num_prompt_tokens=30)
    assert_drafted(
        "block_causal",
        [PREFIX[:4] + PREFIX[18:30]],
        await load("block_causal").lattices([asked]),
    )
    configured = load("block_causal", context_tokens=30)
    assert_drafted("block_causal", [PREFIX[:30]], await configured.lattices([asked]))


def test_a_directory_with_too_short_a_context_is_refused(
    load: Load, save_drafter: SaveDrafter
) -> None:
    edit_json(save_drafter("block_causal") / "config.json", draft_context_tokens=3)
    with pytest.raises(ModelLoadError, match="draft_context_tokens must be 16 or more, got 3"):
        load("block_causal")


async def test_dream_layout_is_read_as_qwen2(load: Load, save_drafter: SaveDrafter) -> None:
    config = json.loads((save_drafter("dream") / "config.json").read_text())
    assert config["model_type"] == "Dream"
    assert "auto_map" in config
    drafter = load("dream")
    assert isinstance(drafter.runner.model, Qwen2ForCausalLM)
    assert isinstance(drafter.runner.model.config, Qwen2Config)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request([]), "empty prefix"),
        (request([3, NUM_KNOWN_IDS]), "below 118, got 118"),
        (request([3, -5]), "below 118, got -5"),
        (request([3], k=0), "from 1 to 128, got 0"),
        (request([3], k=129), "from 1 to 128, got 129"),
        (request([3], temperature=0.8), "seed must be given"),
    ],
)
async def test_bad_requests_are_refused_before_any_work(
    load: Load, wrong: DraftRequest, message: str
) -> None:
    drafter = load("block_causal")
    with pytest.raises(InvalidRequestError, match=message):
        await drafter.lattices([request(PREFIX, "good"), wrong])
    assert drafter.runner.num_forwards == 0
    assert await drafter.lattices([]) == []


async def test_a_failing_forward_raises_drafter_error_and_clears_the_cache(
    load: Load, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = load(kind)

    def fail(*_: object) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr("diffuspec.models.runner.run_packed", fail)
        with pytest.raises(DrafterError, match="device lost"):
            await drafter.lattices([request(PREFIX)])
    assert_drafted(kind, [PREFIX], await drafter.lattices([request(PREFIX)]))


async def test_nan_logits_are_an_error(load: Load) -> None:
    drafter = load("block_causal")
    with torch.inference_mode():
        embedding = drafter.runner.model.get_input_embeddings().weight
        good = embedding[7].clone()
        embedding[7] = torch.nan
    with pytest.raises(DrafterError, match="not finite"):
        await drafter.lattices([request([3, 7])])
    with torch.inference_mode():
        embedding[7] = good
    assert_drafted("block_causal", [[3, 7, 5]], await drafter.lattices([request([3, 7, 5])]))


async def test_released_requests_leave_their_slot(load: Load) -> None:
    drafter = load("dream")
    for name in "abcdef":
        await drafter.lattices([request(PREFIX, name)])
        await drafter.release(name)
    await drafter.release("unknown")


def test_pairs_that_share_no_vocabulary_are_refused(load: Load, save_drafter: SaveDrafter) -> None:
    with pytest.raises(VocabularyError, match="target knows 121 token ids, the drafter only 120"):
        load("block_causal", replace(TARGET, vocab_size=121))
    edit_json(save_drafter("block_causal") / "config.json", mask_token_id=120)
    with pytest.raises(VocabularyError, match="mask_token_id must be below 120, got 120"):
        load("block_causal")


def test_a_causal_lm_is_refused_as_drafter(load: Load, save_target: Callable[[str], Path]) -> None:
    with pytest.raises(ModelLoadError, match="not a diffusion LM"):
        load(save_target("qwen2"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_position_embeddings": 128}, "for 128 positions; it must be more than 128"),
        ({"model_type": "llada", "mask_token_id": None}, "'llada' is not .*; supported .*Dream"),
        ({"model_type": "diffucoder", "mask_token_id": None}, "'diffucoder' is not .*Dream"),
        ({"diffusion_attention": "sideways"}, "'block_causal', 'block_aligned', got 'sideways'"),
        ({"diffusion_shift": 1}, "diffusion_shift must be true or false, got 1"),
    ],
)
def test_a_directory_that_cannot_draft_is_refused_with_the_reason(
    load: Load, save_drafter: SaveDrafter, changes: dict[str, object], reason: str
) -> None:
    edit_json(save_drafter("block_causal") / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=reason):
        load("block_causal")

"""Published diffusion LMs draft what the definition of their family gives."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import ModelLoadError, VocabularyError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import DraftRequest
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from tests.support.diffusion_families import ALIGNED, FAMILIES, save_family
from tests.support.diffusion_reference import (
    Reference,
    assert_lattice,
    refined,
    sees_all,
    sees_blocks,
)
from tests.support.draft_requests import draft_request
from tests.support.models import (
    MASK_TOKEN_ID,
    MAX_POSITIONS,
    NUM_KNOWN_IDS,
    VOCAB_SIZE,
    edit_json,
)

PREFIX = np.random.default_rng(5).integers(3, NUM_KNOWN_IDS, 60).tolist()
TARGET = TargetInfo(NUM_KNOWN_IDS, MAX_POSITIONS, max_sequences=2, eos_token_ids=())

Load = Callable[..., DiffusionDrafter]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Save random checkpoints of families, if there are none; load them until the test ends."""
    with contextlib.ExitStack() as stack:

        def load(name: str, target: TargetInfo = TARGET, **options: object) -> DiffusionDrafter:
            path = tmp_path / name
            if not path.exists():
                save_family(path, name)
            fields = {
                "path": path,
                "device": "cpu",
                "candidate_mass": 1.0,  # every candidate, so that a lattice shows the distribution
                "max_candidates": VOCAB_SIZE,
                "block_size": FAMILIES[name].configured,
                **options,
            }
            drafter = DiffusionDrafter.load(DiffuSpecConfig.model_validate(fields), target)
            stack.callback(drafter.close)
            return drafter

        yield load


def request(prefix: Sequence[int], k: int = 6, request_id: str = "a") -> DraftRequest:
    return draft_request(prefix, k, 200, request_id, "path")


class Definition:
    """Logits of drafts by the definition of a family."""

    def __init__(self, path: Path, name: str) -> None:
        self._family, self._reference = FAMILIES[name], Reference(path)

    def draft(self, prefix: Sequence[int], k: int, block: Sequence[int] = ()) -> torch.Tensor:
        """Return those of a draft's positions; block: its tokens, by default masks."""
        size, masks = self._family.block_size, [MASK_TOKEN_ID]
        token_ids = [*prefix, *(block or masks * k)]
        if size is not None:
            token_ids += masks * (-len(token_ids) % size)
        sees = sees_all if size is None else sees_blocks(size)
        logits = self._reference.logits(token_ids, sees)
        first = len(prefix) - self._family.is_shifted
        drafted = logits[first : first + k].clone()
        drafted[:, NUM_KNOWN_IDS:] = -torch.inf
        return drafted


@pytest.fixture(params=ALIGNED)
def aligned(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.no_cover
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("name", sorted(FAMILIES))
async def test_a_draft_is_what_the_family_defines_wherever_it_begins_and_ends(
    load: Load, tmp_path: Path, name: str, prefix_cache: bool
) -> None:
    """Inside one block, from the start of one, to the end of one, and over three blocks."""
    drafter = load(name, prefix_cache=prefix_cache)
    definition = Definition(tmp_path / name, name)
    size = FAMILIES[name].block_size or 8
    shapes = [(2 * size + 1, 2), (2 * size, 2), (3 * size, size), (2 * size - 1, 2 * size), (1, 1)]
    for number, (length, k) in enumerate(shapes):
        [lattice] = await drafter.lattices([request(PREFIX[:length], k, f"{number}")])
        assert_lattice(lattice, definition.draft(PREFIX[:length], k))


async def test_the_longest_draft_spans_many_blocks(
    load: Load, tmp_path: Path, aligned: str
) -> None:
    drafter, definition = load(aligned), Definition(tmp_path / aligned, aligned)
    [lattice] = await drafter.lattices([request(PREFIX[:21], MAX_DRAFT_TOKENS)])
    assert MAX_DRAFT_TOKENS == 128
    assert_lattice(lattice, definition.draft(PREFIX[:21], MAX_DRAFT_TOKENS))


async def test_the_cache_of_whole_blocks_changes_nothing_as_text_grows_and_is_taken_back(
    load: Load, tmp_path: Path, aligned: str
) -> None:
    drafter, definition = load(aligned), Definition(tmp_path / aligned, aligned)
    size = FAMILIES[aligned].block_size or 1
    other = [*PREFIX[:21], 7, 8, 9, *PREFIX[21:40]]
    prefixes = [*(PREFIX[:n] for n in (10, 11, 12, 16, 18, 17, 36, 35, 36)), other, PREFIX[:40]]
    for prefix in prefixes:
        [lattice] = await drafter.lattices([request(prefix)])
        assert_lattice(lattice, definition.draft(prefix, 6))
        cached = drafter.runner.cache.acquire("a", np.array([*prefix, 3], np.int32)).length
        assert cached == len(prefix) // size * size


async def test_hypothetical_prefixes_share_whole_blocks_and_a_forward(
    load: Load, tmp_path: Path, aligned: str
) -> None:
    drafter, definition = load(aligned), Definition(tmp_path / aligned, aligned)
    tails: tuple[list[int], ...] = ([], [8], [5, 6, 7], [5, 6, 9, 4, 4, 4, 4, 4, 4], [5], [11, 12])
    prefixes = [PREFIX[:36] + tail for tail in tails]  # 36: blocks of 4, 6 and 9 end there
    await drafter.lattices([request(PREFIX[:30])])
    before = drafter.runner.num_forwards
    batch = [request(prefix, 5 + i) for i, prefix in enumerate(prefixes)]
    lattices = await drafter.lattices([*batch, request(PREFIX[:7], 6, "other")])
    assert drafter.runner.num_forwards == before + 1
    for i, (prefix, lattice) in enumerate(zip(prefixes, lattices, strict=False)):
        assert_lattice(lattice, definition.draft(prefix, 5 + i))
    assert_lattice(lattices[-1], definition.draft(PREFIX[:7], 6))


@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_many_hypotheses_are_spread_over_several_layouts(
    load: Load,
    tmp_path: Path,
    aligned: str,
    prefix_cache: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diffuspec.models.diffusion.NUM_SCRATCH_ROWS", 40)
    target = replace(TARGET, max_model_len=90)
    drafter = load(aligned, target, prefix_cache=prefix_cache)
    definition = Definition(tmp_path / aligned, aligned)
    prefixes = [
        [*PREFIX[:18], first, *PREFIX[:length]]
        for first, length in ((3, 0), (3, 2), (4, 15), (3, 1), (9, 0), (10, 30))
    ]
    lattices = await drafter.lattices([request(prefix) for prefix in prefixes])
    for prefix, lattice in zip(prefixes, lattices, strict=True):
        assert_lattice(lattice, definition.draft(prefix, 6))


async def test_a_long_prefix_is_prefilled_in_whole_blocks(
    load: Load, tmp_path: Path, aligned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuspec.models.diffusion.MAX_PREFILL_ROWS", 17)
    alone = load(aligned, replace(TARGET, max_sequences=1))
    definition = Definition(tmp_path / aligned, aligned)
    [lattice] = await alone.lattices([request(PREFIX)])
    assert_lattice(lattice, definition.draft(PREFIX, 6))
    drafter = load(aligned)
    for _ in range(8):
        lattice, short = await drafter.lattices([request(PREFIX), request(PREFIX[:9], 6, "b")])
        assert_lattice(short, definition.draft(PREFIX[:9], 6))
        if lattice.num_positions:
            break
    assert_lattice(lattice, definition.draft(PREFIX, 6))


@pytest.mark.parametrize("length", [19, 24])
async def test_refinement_goes_block_after_block(
    load: Load, tmp_path: Path, aligned: str, length: int
) -> None:
    k, num_steps, size = 14, 4, FAMILIES[aligned].block_size or 1
    drafter = load(aligned, num_refinement_steps=num_steps)
    definition, prefix = Definition(tmp_path / aligned, aligned), PREFIX[:length]
    [lattice] = await drafter.lattices([request(prefix, k)])
    expected = refined(
        lambda block: definition.draft(prefix, k, block),
        k,
        num_steps,
        turn=lambda place: (length + place) // size,
    )
    assert_lattice(lattice, expected)


async def test_a_prefix_beyond_the_context_leaves_room_for_the_whole_last_block(
    load: Load, tmp_path: Path
) -> None:
    path = save_family(tmp_path / "fast-dllm", "fast-dllm")
    edit_json(path / "config.json", max_position_embeddings=136)
    drafter, definition = load("fast-dllm"), Definition(path, "fast-dllm")
    prefix = np.random.default_rng(6).integers(3, NUM_KNOWN_IDS, 140).tolist()
    for length in (122, 123, 124, 140):  # 136 less the 6 drafted and the 7 that may follow
        [lattice] = await drafter.lattices([request(prefix[:length])])
        start = 0 if length <= 123 else 61
        assert_lattice(lattice, definition.draft(prefix[start:length], 6))
    edit_json(path / "config.json", max_position_embeddings=135)
    with pytest.raises(ModelLoadError, match="for 135 positions; it must be more than 135"):
        load("fast-dllm")


async def test_rows_of_the_vocabulary_beyond_the_targets_tokenizer_are_never_drafted(
    load: Load, tmp_path: Path
) -> None:
    """As Qwen2.5's 152064 rows, where its tokenizer has 151665 tokens."""
    path = save_family(tmp_path / "sdar", "sdar")
    weights = load_file(path / "model.safetensors")
    head = weights["lm_head.weight"]
    beyond = head[NUM_KNOWN_IDS - 20 :].clone()
    weights["lm_head.weight"] = torch.cat([head, 50 * beyond, -50 * beyond])
    embeddings = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = torch.cat([embeddings, embeddings[:44]])
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    edit_json(path / "config.json", vocab_size=VOCAB_SIZE + 44)
    drafter, definition = load("sdar", max_candidates=256), Definition(path, "sdar")
    logits = Reference(path).logits([*PREFIX[:19], *[MASK_TOKEN_ID] * 9], sees_blocks(4))
    assert (logits[19:25].argmax(-1) >= NUM_KNOWN_IDS).all()  # they would lead every column
    [lattice] = await drafter.lattices([request(PREFIX[:19])])
    assert int(lattice.token_ids.max()) < NUM_KNOWN_IDS
    assert_lattice(lattice, definition.draft(PREFIX[:19], 6))


def test_the_mask_is_read_from_config_generation_config_tokenizer_or_the_table(
    tmp_path: Path,
) -> None:
    for name in FAMILIES:
        settings = inspect_checkpoint(save_family(tmp_path / name, name)).diffusion
        assert settings.mask_token_id == MASK_TOKEN_ID, name
    sdar = tmp_path / "sdar"
    edit_json(sdar / "config.json", mask_token_id=None)
    assert inspect_checkpoint(sdar).diffusion.mask_token_id == 151669
    (sdar / "added_tokens.json").write_text(json.dumps({"<|MASK|>": 117}))
    assert inspect_checkpoint(sdar).diffusion.mask_token_id == 117
    a2d = tmp_path / "a2d-llama"
    (a2d / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "w5"}}))
    edit_json(a2d / "tokenizer_config.json", mask_token=None)
    assert inspect_checkpoint(a2d).diffusion.mask_token_id == 5
    edit_json(a2d / "config.json", mask_token_id="<|mask|>")
    with pytest.raises(ModelLoadError, match=r"must be a token id, got '<\|mask\|>'"):
        _ = inspect_checkpoint(a2d).diffusion
    edit_json(a2d / "config.json", mask_token_id=None)
    (a2d / "special_tokens_map.json").unlink()
    (a2d / "tokenizer.json").write_text("[")
    with pytest.raises(ModelLoadError, match=r"cannot read tokenizer\.json"):
        _ = inspect_checkpoint(a2d).diffusion


def test_a_mask_beyond_the_vocabulary_is_refused(load: Load, tmp_path: Path) -> None:
    edit_json(save_family(tmp_path / "sdar", "sdar") / "config.json", mask_token_id=None)
    with pytest.raises(VocabularyError, match="mask_token_id must be below 120, got 151669"):
        load("sdar")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "sdar_moe"}, "'sdar_moe' is not supported: SDAR's mixture of experts"),
        ({"model_type": "wedlm"}, "'wedlm' is not supported: WeDLM moves known tokens"),
        ({"model_type": "qwen2", "text_mask_token_id": 5}, "cannot draft: SDLM has blocks"),
        ({"model_type": "sdar", "noise": "uniform"}, "cannot draft: .* model of UNO, and the part"),
        ({"bd_size": 0}, "bd_size must be from 1 to 256, got 0"),
        ({"bd_size": "8"}, "bd_size must be from 1 to 256, got '8'"),
        ({"bd_size": True}, "bd_size must be from 1 to 256, got True"),
    ],
)
def test_what_cannot_draft_is_refused_with_the_reason(
    load: Load, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    path = save_family(tmp_path / "fast-dllm", "fast-dllm")
    edit_json(path / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=reason):
        load("fast-dllm")


def test_a_directory_with_the_adapter_of_uno_is_refused_and_so_is_an_adapter_alone(
    load: Load, tmp_path: Path
) -> None:
    adapter = save_family(tmp_path / "sdar", "sdar") / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"cannot draft: .* a LoRA adapter for rows of random"):
        load("sdar")
    with pytest.raises(ModelLoadError, match=r"no config\.json: it holds a LoRA adapter, without"):
        inspect_checkpoint(adapter)


def test_a_configured_block_size_counts_where_there_are_blocks_and_is_refused_elsewhere(
    load: Load,
) -> None:
    with pytest.raises(ModelLoadError, match=r"leave out drafter\.block_size 8"):
        load("dream", block_size=8)
    for name in ("sdar of 9", "a2d-qwen3 bd3lm"):
        load(name)


def test_a_directory_of_ones_own_may_have_aligned_blocks(load: Load, tmp_path: Path) -> None:
    path = save_family(tmp_path / "a2d-qwen2", "a2d-qwen2")
    edit_json(path / "config.json", model_type="qwen2", diffusion_attention="block_aligned")
    with pytest.raises(ModelLoadError, match=r"diffusion_block_size must be .* got None"):
        _ = inspect_checkpoint(path).diffusion
    edit_json(path / "config.json", diffusion_block_size=8)
    settings = inspect_checkpoint(path).diffusion
    assert (settings.attention, settings.block_size) == ("block_aligned", 8)
    assert settings.is_shifted and not settings.continues_text


def test_a_restrictive_licence_and_unknown_blocks_are_named_when_a_drafter_is_loaded(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for name in ("efficient-dlm", "a2d-qwen3", "a2d-qwen3 bd3lm", "sdar"):
            load(name)
    licence, blocks = (record.getMessage() for record in caplog.records)
    assert "Efficient-DLM is under CC-BY-NC 4.0" in licence
    assert "do not say whether it was trained with blocks" in blocks
    assert "bd3lm give drafter.block_size (--drafter-block-size): 32" in blocks


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_family_is_taken_as_a_target(tmp_path: Path, name: str) -> None:
    checkpoint = inspect_checkpoint(save_family(tmp_path / "model", name))
    with pytest.raises(ModelLoadError, match="is a diffusion LM: it can draft"):
        checkpoint.check_autoregressive("the target")

"""The DFlash drafter computes what transformers' own does, however its rows are batched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DFlashCache

from diffuspec.algorithm.lattice import Pruning
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.types import DraftRequest, Lattice
from diffuspec.models.draft_requests import with_noise
from diffuspec.models.heads.dflash import DFlashModel
from diffuspec.models.heads.dflash_runner import DFlashRunner
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.kernels import operations
from diffuspec.models.layers.fused_decoder import FusedDecoderLayer
from diffuspec.models.target import CausalTarget
from tests.support.draft_requests import draft_request
from tests.support.heads import DFLASH_BLOCK, DFLASH_MASK, dflash_model, save_dflash
from tests.support.models import edit_json

H, V = 32, 264  # sizes of the random targets
ALL = Pruning(1.0, V, ())  # nothing is pruned


def reference(
    layers: TargetLayers, model: Any, prefix: Sequence[int], states: torch.Tensor, first: int
) -> torch.Tensor:
    """Return the logits of a block's masks by transformers' model, without a cached prefix."""
    given = prefix[first + len(states) :]
    block = [*given, *[DFLASH_MASK] * (DFLASH_BLOCK - len(given))]
    cache = DFlashCache(config=model.config)
    cache.set_previous_accepted_tokens(len(states))
    with torch.no_grad():
        hidden = model(
            noise_embeds=layers.embed(torch.tensor([block])),
            context_hidden_states=states[None],
            position_ids=torch.arange(first, first + len(states) + DFLASH_BLOCK)[None],
            past_key_values=cache,
        ).last_hidden_state
        logits = layers.logits(hidden[0, len(given) :])
    logits[:, 258:] = -torch.inf  # ids that the target does not know
    return logits


def request(name: str, prefix: Sequence[int], k: int = 5, **sampling: Any) -> DraftRequest:
    return draft_request(prefix, k, name=name, **sampling)


def assert_same(found: Lattice, logits: torch.Tensor) -> None:
    wanted = logits.log_softmax(dim=-1)
    assert found.num_positions == len(wanted)
    for position, row in enumerate(wanted):
        count = found.num_candidates[position]
        mine = found.token_ids[position][:count]
        assert set(torch.nonzero(row > -9).squeeze(1).tolist()) <= set(mine)
        expected = row[torch.from_numpy(mine).long()].numpy()
        assert np.allclose(found.logprobs[position][:count], expected, atol=1e-3)


def save_as(layout: str, path: Path) -> None:
    """Save the same weights as transformers, z-lab, or vLLM's speculators do."""
    if layout == "transformers":
        dflash_model().save_pretrained(path)
        return
    save_dflash(path)
    if layout == "speculators":
        said = json.loads((path / "config.json").read_text())
        own = said.pop("dflash_config")
        del said["is_causal"]
        said = {
            "speculators_model_type": "dflash",
            "transformer_layer_config": said,
            "aux_hidden_state_layer_ids": [layer + 1 for layer in own["target_layer_ids"]],
            "block_size": own["block_size"],
            "mask_token_id": own["mask_token_id"],
            "sliding_window_non_causal": True,
        }
        (path / "config.json").write_text(json.dumps(said))


@pytest.mark.parametrize("layout", ["transformers", "z-lab", "speculators"])
def test_lattices_are_those_of_transformers_own_drafter(
    layout: str,
    target: CausalTarget,
    layers: TargetLayers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two requests over two steps, one without its first tokens' states, read in pieces."""
    monkeypatch.setattr("diffuspec.models.heads.dflash_runner.MAX_CONTEXT_ROWS", 7)
    save_as(layout, tmp_path)
    drafter = DFlashRunner(DFlashModel.load(tmp_path, layers), layers, target.info, ALL)
    model = dflash_model()
    states = torch.randn(2, 30, 2 * H, generator=torch.Generator().manual_seed(1))
    prefixes, firsts = [[*range(40, 56)], [*range(60, 65)]], [0, 2]
    for temperature in (0.0, 0.8):
        known = [states[row, first : len(prefixes[row]) - 1] for row, first in enumerate(firsts)]
        requests = [
            request(name, prefix, k, temperature=temperature, seed=3)
            for name, prefix, k in zip("ab", prefixes, (5, 3), strict=True)
        ]
        features = [Features(first, (rows,)) for first, rows in zip(firsts, known, strict=True)]
        found = drafter.lattices(requests, features)
        for row, one in enumerate(found):
            logits = reference(layers, model, prefixes[row], known[row], firsts[row])
            wanted = with_noise(logits[: requests[row].num_draft_tokens], requests[row], ())
            assert_same(one, wanted)
        prefixes = [[*prefix, 7, 9, 11] for prefix in prefixes]


def test_its_layers_are_replaced_by_fast_ones(layers: TargetLayers, tmp_path: Path) -> None:
    save_dflash(tmp_path)
    found = DFlashModel.load(tmp_path, layers).layers
    assert all(isinstance(one, FusedDecoderLayer) == operations.is_available for one in found)


def test_hypothetical_prefixes_begin_blocks_after_what_is_known(
    target: CausalTarget, layers: TargetLayers, tmp_path: Path
) -> None:
    """The prefix of one request and three guesses of what follows it, and another request."""
    save_dflash(tmp_path)
    drafter = DFlashRunner(DFlashModel.load(tmp_path, layers), layers, target.info, ALL)
    states = torch.randn(2, 12, 2 * H, generator=torch.Generator().manual_seed(1))
    prefix, other = [*range(40, 53)], [*range(60, 69)]
    asked = [("a", prefix), ("a", [*prefix, 7]), ("b", other), ("a", [*prefix, 7, 8, 9, 10])]
    asked.append(("a", [*prefix[:8], 5]))  # another past of the same request
    known = [states[0, :12], states[0, :12], states[1, :8], states[0, :12], states[0, :8]]
    requests = [request(name, tokens) for name, tokens in asked]
    found = drafter.lattices(requests, [Features(0, (rows,)) for rows in known])
    assert [one.num_positions for one in found] == [5, 4, 5, 1, 5]
    assert drafter.max_unknown == 4
    for (_, tokens), rows, one in zip(asked, known, found, strict=True):
        assert_same(one, reference(layers, dflash_model(), tokens, rows, 0))


def test_layers_with_a_window_are_causal_within_a_block_unless_the_checkpoint_says_otherwise(
    target: CausalTarget, layers: TargetLayers, tmp_path: Path
) -> None:
    save_dflash(tmp_path, layer_types=["sliding_attention"] * 3, is_causal=None)
    states = torch.randn(4, 2 * H, generator=torch.Generator().manual_seed(1))
    found = []
    for size in (DFLASH_BLOCK, 3):  # what later masks there are changes nothing
        config = json.loads((tmp_path / "config.json").read_text())
        config["dflash_config"]["block_size"] = size
        (tmp_path / "config.json").write_text(json.dumps(config))
        model = DFlashModel.load(tmp_path, layers)
        assert model.settings.causal_layers == (True, True, True)
        drafter = DFlashRunner(model, layers, target.info, ALL)
        found += drafter.lattices([request("a", [4, 5, 6, 7, 8], k=2)], [Features(0, (states,))])
    assert np.allclose(found[0].logprobs, found[1].logprobs, atol=1e-4)
    assert found[1].num_positions == 2


def test_a_head_of_its_own_over_some_ids_is_used(
    target: CausalTarget, layers: TargetLayers, tmp_path: Path
) -> None:
    weights = save_dflash(tmp_path)
    head = torch.randn(3, H, generator=torch.Generator().manual_seed(2))
    weights |= {"lm_head.weight": head, "d2t": torch.tensor([5, 40, 100])}
    save_file({name: x.contiguous() for name, x in weights.items()}, tmp_path / "model.safetensors")
    drafter = DFlashRunner(DFlashModel.load(tmp_path, layers), layers, target.info, ALL)
    states = Features(0, (torch.randn(4, 2 * H, generator=torch.Generator().manual_seed(1)),))
    [found] = drafter.lattices([request("a", [4, 5, 6, 7, 8])], [states])
    assert {token for row in found.token_ids for token in row if token >= 0} == {5, 41, 102}
    assert found.num_candidates.tolist() == [3] * 5
    weights = load_file(tmp_path / "model.safetensors") | {"d2t": torch.tensor([5, 40, 999])}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="guesses ids from 5 to 1001, the target has 264"):
        DFlashModel.load(tmp_path, layers)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"hidden_size": 64}, "its hidden_size is 64, the target's 32"),
        ({"vocab_size": 999}, "its vocab_size is 999, the target's 264"),
        ({"num_target_layers": 36}, "its num_target_layers is 36, the target's 2"),
        ({"target_layer_ids": [1, 33]}, r"reads the layers \[1, 33\], the target has 2"),
        ({"target_layer_ids": [0]}, r"fc.weight has the shape \[32, 64\], .* \[32, 32\]"),
        ({"mask_token_id": 300}, "mask_token_id below 264, got 6 and 300"),
        ({"mask_token_id": None}, "mask_token_id must be 1 or more, got None"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported, got 30.0"),
        ({"num_attention_heads": "four"}, "config.json cannot be used"),
    ],
)
def test_a_checkpoint_of_another_target_is_refused(
    said: dict[str, Any], message: str, layers: TargetLayers, tmp_path: Path
) -> None:
    save_dflash(tmp_path)
    own = ("target_layer_ids", "mask_token_id")
    config = json.loads((tmp_path / "config.json").read_text())
    edit_json(
        tmp_path / "config.json",
        dflash_config=config["dflash_config"] | {k: v for k, v in said.items() if k in own},
        **{key: value for key, value in said.items() if key not in own},
    )
    with pytest.raises(ModelLoadError, match=message):
        DFlashModel.load(tmp_path, layers)


def test_drafters_of_the_second_generation_are_refused(
    layers: TargetLayers, tmp_path: Path
) -> None:
    weights = save_dflash(tmp_path)
    other = {"candidate_selector.hidden_projection.weight": torch.zeros(4, H)}
    torch.save(weights | other, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="is a DFlash 2 drafter"):
        DFlashModel.load(tmp_path, layers)

"""Hydra heads compute what their authors' formula says, on what was drafted before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.hydra import HydraDraftModel, HydraHeads
from diffuspec.models.heads.nodes import DraftNode
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.target import CausalTarget
from tests.support.draft_requests import draft_request
from tests.support.heads import save_hydra
from tests.support.models import edit_json

H, V, NUM_KNOWN = 32, 264, 258  # sizes of the random targets


def request(name: str, last: int) -> DraftRequest:
    return draft_request([3, 4, last], name=name)


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("has_own_head", [True, False])
def test_candidates_follow_the_formula_at_every_node(
    target: CausalTarget, layers: TargetLayers, tmp_path: Path, num_blocks: int, has_own_head: bool
) -> None:
    vocab_size = V if has_own_head else None
    weights = save_hydra(tmp_path, H, vocab_size, num_heads=2, num_blocks=num_blocks)
    model = HydraDraftModel(HydraHeads.load(tmp_path, layers), layers, target.info)

    def expected(head: int, state: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        x = torch.cat([state, *layers.embed(torch.tensor(tokens))])
        for block in range(num_blocks):
            name = f"hydra_mlp.{head}.{block}"
            y = weights[f"{name}.linear.weight"] @ x + weights[f"{name}.linear.bias"]
            if not block:
                name = f"{name}.res_connection"
                x = weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]
            x = x + y * torch.sigmoid(y)
        if not has_own_head:
            return layers.head(x[None])[0, :NUM_KNOWN].log_softmax(-1)
        name = f"hydra_lm_head.{head}"
        logits = weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]
        return logits[:NUM_KNOWN].log_softmax(-1)

    requests, states = [request("a", 5), request("b", 6)], torch.randn(2, 3, H)
    model.begin(requests, [Features(0, (state,)) for state in states])
    roots = [DraftNode(), DraftNode()]
    level = [(one, [root]) for one, root in zip(requests, roots, strict=True)]
    for depth in range(2):
        found = model.candidates(level, 4)
        below = []
        for place, (one, nodes) in enumerate(level):
            for node, candidates in zip(nodes, found[place], strict=True):
                tokens = [5 + place, *node.path]
                values, ids = expected(depth, states[place, -1], tokens).topk(4)
                assert [token_id for token_id, _ in candidates] == ids.tolist()
                assert [one for _, one in candidates] == pytest.approx(values.tolist(), abs=1e-3)
                node.grow(candidates)
            below.append((one, nodes[0].children[: 3 - place]))
        level = below
    assert model.candidates(level, 4) == [[[]] * 3, [[]] * 2], "there are no more heads"


def test_heads_that_do_not_look_at_the_draft_are_refused(
    layers: TargetLayers, tmp_path: Path
) -> None:
    save_hydra(tmp_path, H, None)
    edit_json(tmp_path / "config.json", hydra_head_arch="prefix-mlp")
    with pytest.raises(
        ModelLoadError, match="must be 'mlp', with grounded_heads, got 'prefix-mlp'"
    ):
        HydraHeads.load(tmp_path, layers)
    edit_json(tmp_path / "config.json", hydra_head_arch="mlp", grounded_heads=False)
    with pytest.raises(ModelLoadError, match="with grounded_heads, got 'mlp' and False"):
        HydraHeads.load(tmp_path, layers)


def test_a_checkpoint_of_another_target_is_refused(layers: TargetLayers, tmp_path: Path) -> None:
    save_hydra(tmp_path, 64, None)
    with pytest.raises(ModelLoadError, match=r"0.linear.weight has the shape \[64, 128\]"):
        HydraHeads.load(tmp_path, layers)

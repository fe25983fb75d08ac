"""The EAGLE head computes what its authors' formula says, however its rows are batched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.eagle import EagleHead
from diffuspec.models.heads.eagle_runner import EagleRunner
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.nodes import Candidates, DraftNode
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.kernels import operations
from diffuspec.models.layers.fused_decoder import FusedDecoderLayer
from diffuspec.models.target import CausalTarget
from tests.support.draft_requests import draft_request
from tests.support.heads import save_eagle
from tests.support.models import edit_json

H, V = 32, 264  # sizes of the random targets
Weights = dict[str, torch.Tensor]


def reference(
    weights: Weights,
    embedded: torch.Tensor,
    states: torch.Tensor,
    positions: Sequence[int],
    visible: torch.Tensor,
) -> torch.Tensor:
    """One decoder layer without a norm before its attention, of 4 heads and 2 for the keys."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        bias = weights.get(f"{name}.bias", torch.zeros(1))
        return x @ weights[f"{name}.weight"].T + bias

    def turn(x: torch.Tensor) -> torch.Tensor:
        speeds = 5000.0 ** -(torch.arange(4) / 4)
        angles = torch.tensor(positions)[:, None] * speeds
        one, two = x[..., :4], x[..., 4:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    x = linear("fc", torch.cat([embedded, states], dim=-1))
    q, k, v = (linear(f"layers.0.self_attn.{name}_proj", x) for name in "qkv")
    heads = []
    for head in range(4):
        of_query, of_key = (
            slice(8 * head, 8 * head + 8),
            slice(8 * (head // 2), 8 * (head // 2) + 8),
        )
        scores = turn(q[:, of_query]) @ turn(k[:, of_key]).T / 8**0.5
        weight = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        heads.append(weight @ v[:, of_key])
    x = x + linear("layers.0.self_attn.o_proj", torch.cat(heads, dim=-1))
    y = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    y = y * weights["layers.0.post_attention_layernorm.weight"]
    gate, up = linear("layers.0.mlp.gate_proj", y), linear("layers.0.mlp.up_proj", y)
    return x + linear("layers.0.mlp.down_proj", gate * torch.sigmoid(gate) * up)


def request(name: str, prefix: Sequence[int]) -> DraftRequest:
    return draft_request(prefix, name=name)


def expected(
    weights: Weights,
    layers: TargetLayers,
    prefix: Sequence[int],
    states: torch.Tensor,
    path: Sequence[int],
    first: int = 0,
) -> torch.Tensor:
    """Return ln P of each token after prefix and path, row by row and without a cache."""
    num_known = len(prefix) - 1 - first
    for length in range(len(path) + 1):
        token_ids = [*prefix[first + 1 :], *path[:length]]
        rows = len(token_ids)
        positions = [*range(first, first + num_known + length)]
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        embedded = layers.embed(torch.tensor(token_ids))
        output = reference(weights, embedded, states[:rows], positions, causal)
        states = torch.cat([states, output[-1:]])
    return layers.head(states[-1:])[0, :258].log_softmax(-1)


def assert_same(found: Candidates, logprobs: torch.Tensor) -> None:
    values, ids = logprobs.topk(5)
    assert [token_id for token_id, _ in found] == ids.tolist()
    assert [one for _, one in found] == pytest.approx(values.tolist(), abs=1e-3)


@pytest.mark.parametrize("has_biases", [False, True])
def test_candidates_follow_the_formula_at_every_node(
    target: CausalTarget,
    layers: TargetLayers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_biases: bool,
) -> None:
    """Two requests, one without its first states, over two steps, with prefixes read in pieces."""
    monkeypatch.setattr("diffuspec.models.heads.eagle_runner.MAX_PREFILL_ROWS", 3)
    weights = save_eagle(tmp_path, H, V, has_biases)
    head = EagleHead.load(tmp_path, layers)
    assert isinstance(head.layers[0], FusedDecoderLayer) == operations.is_available
    model = EagleRunner(head, layers, target.info)
    torch.manual_seed(1)
    states = {"a": torch.randn(20, H), "b": torch.randn(20, H)}
    prefixes, first = {"a": [*range(40, 49)], "b": [*range(60, 65)]}, {"a": 0, "b": 2}
    for _ in range(2):
        requests = [request(name, prefix) for name, prefix in prefixes.items()]
        known = {name: states[name][: len(prefixes[name]) - 1] for name in "ab"}
        features = [Features(first[name], (known[name][first[name] :],)) for name in "ab"]
        model.begin(requests, features)
        level = [(one, [DraftNode()]) for one in requests]
        for _ in range(3):
            found = model.candidates(level, 5)
            below = []
            for (one, nodes), by_node in zip(level, found, strict=True):
                name = one.request_id
                for node, candidates in zip(nodes, by_node, strict=True):
                    mine = known[name][first[name] :]
                    wanted = expected(weights, layers, prefixes[name], mine, node.path, first[name])
                    assert_same(candidates, wanted)
                    node.grow(candidates)
                new = [child for node in nodes for child in node.children]
                below.append((one, [new[1], new[3], new[0]][: 3 if name == "a" else 1]))
            level = below
        prefixes = {name: [*prefix, 7, 9] for name, prefix in prefixes.items()}


def test_a_checkpoint_of_another_target_is_refused(layers: TargetLayers, tmp_path: Path) -> None:
    save_eagle(tmp_path / "words", H, 999)
    with pytest.raises(ModelLoadError, match=r"embed_tokens.weight has the shape \[999, 32\]"):
        EagleHead.load(tmp_path / "words", layers)
    save_eagle(tmp_path / "wide", 64, V)
    with pytest.raises(ModelLoadError, match=r"another target: embed_tokens.weight"):
        EagleHead.load(tmp_path / "wide", layers)
    save_eagle(tmp_path / "config", H, V)
    edit_json(tmp_path / "config" / "config.json", hidden_size=64)
    with pytest.raises(ModelLoadError, match="its hidden_size is 64, the target's 32"):
        EagleHead.load(tmp_path / "config", layers)
    edit_json(tmp_path / "config" / "config.json", hidden_size=H, num_attention_heads="four")
    with pytest.raises(ModelLoadError, match=r"config.json cannot be used"):
        EagleHead.load(tmp_path / "config", layers)


def test_other_generations_of_eagle_are_refused(layers: TargetLayers, tmp_path: Path) -> None:
    weights = save_eagle(tmp_path, H, V)
    torch.save({**weights, "d2t": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="use a drafter of the kind eagle3"):
        EagleHead.load(tmp_path, layers)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    edit_json(tmp_path / "config.json", num_hidden_layers=2)
    with pytest.raises(ModelLoadError, match="has one layer"):
        EagleHead.load(tmp_path, layers)

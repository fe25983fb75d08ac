"""The EAGLE-3 head computes what the paper's formula says, in both layouts of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.heads.eagle import EagleHead
from diffuspec.models.heads.eagle3 import Eagle3Head
from diffuspec.models.heads.eagle_runner import EagleRunner
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.nodes import DraftNode
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.target import CausalTarget
from tests.support.draft_requests import draft_request
from tests.support.heads import EAGLE3_COLUMNS, save_eagle, save_eagle3
from tests.support.models import edit_json

H, V = 32, 264  # sizes of the random targets
Weights = dict[str, torch.Tensor]


def reference(
    weights: Weights,
    embedded: torch.Tensor,
    states: torch.Tensor,
    is_normed_before: bool,
) -> torch.Tensor:
    """One decoder layer of 4 heads and 2 for the keys, whose rows see the earlier ones, [T, H]."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ weights[f"layers.0.{name}_proj.weight"].T

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return x * weights[f"layers.0.{name}.weight"]

    def turn(x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(len(x))[:, None] * 5000.0 ** -(torch.arange(4) / 4)
        one, two = x[..., :4], x[..., 4:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)

    normed = norm("hidden_norm", states)
    x = torch.cat([norm("input_layernorm", embedded), normed], dim=-1)
    q, k, v = (linear(f"self_attn.{name}", x) for name in "qkv")
    causal, heads = torch.ones(len(x), len(x), dtype=torch.bool).tril(), []
    for head in range(4):
        mine = slice(8 * head, 8 * head + 8)
        shared = slice(8 * (head // 2), 8 * (head // 2) + 8)
        scores = turn(q[:, mine]) @ turn(k[:, shared]).T / 8**0.5
        heads.append(scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v[:, shared])
    attended = linear("self_attn.o", torch.cat(heads, dim=-1))
    y = attended + (normed if is_normed_before else states)
    z = norm("post_attention_layernorm", y)
    inner = linear("mlp.gate", z) * linear("mlp.gate", z).sigmoid() * linear("mlp.up", z)
    return y + linear("mlp.down", inner)


def expected(
    weights: Weights,
    embedding: torch.Tensor,
    prefix: Sequence[int],
    features: torch.Tensor,
    path: Sequence[int],
    is_normed_before: bool,
) -> torch.Tensor:
    """Return the logits after prefix and path, row by row and without a cache, [columns]."""
    if "input_norm.weight" in weights:
        size = (features.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        features = features / size * weights["input_norm.weight"]
    states = features @ weights["fc.weight"].T
    for length in range(len(path) + 1):
        token_ids = torch.tensor([*prefix[1:], *path[:length]])
        output = reference(weights, embedding[token_ids], states, is_normed_before)
        states = torch.cat([states, output[-1:]])
    last = states[-1] / (states[-1].square().mean() + 1e-6).sqrt() * weights["norm.weight"]
    return weights["lm_head.weight"] @ last


@pytest.mark.parametrize(
    ("dialect", "config", "is_normed_before"),
    [
        ("eagle", {}, False),
        ("speculators", {}, True),
        ("speculators", {"norm_before_residual": False, "norm_before_fc": True}, False),
    ],
)
def test_candidates_follow_the_papers_formula_at_every_node(
    target: CausalTarget,
    layers: TargetLayers,
    tmp_path: Path,
    dialect: str,
    config: dict[str, bool],
    is_normed_before: bool,
) -> None:
    weights = save_eagle3(tmp_path, H, V, dialect, **config)
    head = Eagle3Head.load(tmp_path, layers)
    assert head.hidden_layers == (0, 1, 1)
    model = EagleRunner(head, layers, target.info)
    embedding = weights.get("embed_tokens.weight")
    if embedding is None:
        embedding = layers.embed(torch.arange(V))
    prefix, features = list(range(40, 49)), torch.randn(8, 3 * H)
    request = draft_request(prefix)
    model.begin([request], [Features(0, (features,))])
    nodes = [DraftNode()]
    for _ in range(3):
        [by_node] = model.candidates([(request, nodes)], 5)
        for node, candidates in zip(nodes, by_node, strict=True):
            logits = expected(weights, embedding, prefix, features, node.path, is_normed_before)
            values, columns = logits.log_softmax(-1).topk(5)
            assert [token_id for token_id, _ in candidates] == (6 * columns).tolist()
            assert [one for _, one in candidates] == pytest.approx(values.tolist(), abs=2e-2)
            node.grow(candidates)
        nodes = [node.children[2] for node in nodes] + [nodes[0].children[0]]


def test_taps_are_its_authors_unless_the_checkpoint_lists_others(
    layers: TargetLayers, tmp_path: Path
) -> None:
    save_eagle3(tmp_path, H, V)
    edit_json(tmp_path / "config.json", eagle_config={})
    with pytest.raises(ModelLoadError, match=r"the layers \[1, 0, -2\], the target has 2"):
        Eagle3Head.load(tmp_path, layers)


def test_embeddings_equal_to_the_targets_are_shared(layers: TargetLayers, tmp_path: Path) -> None:
    weights = save_eagle3(tmp_path, H, V, "speculators")
    assert Eagle3Head.load(tmp_path, layers).embed_tokens is not None
    weights["embed_tokens.weight"] = layers.embed(torch.arange(V))
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert Eagle3Head.load(tmp_path, layers).embed_tokens is None


def test_an_id_without_a_column_is_never_drafted(layers: TargetLayers, tmp_path: Path) -> None:
    save_eagle3(tmp_path, H, V)
    logits = Eagle3Head.load(tmp_path, layers).logits(torch.randn(2, H), layers)
    drafted = logits.isfinite().any(0).nonzero().squeeze(1)
    assert logits.shape == (2, V) and drafted.tolist() == [6 * n for n in range(EAGLE3_COLUMNS)]


def test_what_is_not_the_papers_head_is_refused_by_name(
    layers: TargetLayers, tmp_path: Path
) -> None:
    weights = save_eagle3(tmp_path, H, V)
    with pytest.raises(ModelLoadError, match="use a drafter of the kind eagle3"):
        EagleHead.load(tmp_path, layers)
    for key in ("fc_norm", "norm_output"):
        edit_json(tmp_path / "config.json", **{key: True})
        with pytest.raises(ModelLoadError, match=f"{key} is not supported"):
            Eagle3Head.load(tmp_path, layers)
        edit_json(tmp_path / "config.json", **{key: False})
    torch.save(
        {**weights, "layers.0.self_attn.q_norm.weight": torch.ones(8)},
        tmp_path / "pytorch_model.bin",
    )
    with pytest.raises(ModelLoadError, match=r"self_attn.q_norm.weight is not supported"):
        Eagle3Head.load(tmp_path, layers)
    edit_json(tmp_path / "config.json", speculators_model_type="peagle")
    with pytest.raises(ModelLoadError, match="a speculator 'peagle', not eagle3"):
        Eagle3Head.load(tmp_path, layers)
    save_eagle(tmp_path / "first", H, V)
    with pytest.raises(ModelLoadError, match="is not an EAGLE-3 head"):
        Eagle3Head.load(tmp_path / "first", layers)

"""What a diffusion LM computes, by its definition, in plain torch.

Who sees whom is asked for each pair of rows. Nothing of the package or of transformers computes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu

from diffuspec.core.types import Lattice
from tests.support.models import MASK_TOKEN_ID, NUM_KNOWN_IDS

Sees = Callable[[int, int], bool]


def sees_all(row: int, column: int) -> bool:
    return True


def sees_blocks(block_size: int) -> Sees:
    """A row sees its own block and all earlier ones; blocks begin at multiples of their size."""
    return lambda row, column: column // block_size <= row // block_size


class Reference:
    """A decoder of the Llama family, with Qwen2's biases or Qwen3's norms if it has any."""

    def __init__(self, path: Path) -> None:
        self._config: dict[str, Any] = json.loads((path / "config.json").read_text())
        weights = load_file(path / "model.safetensors")
        renames = {"encoder.": "model.", "diffusion_head.": "lm_head."}
        for old, new in renames.items():
            weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
        self._weights = weights

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], sees: Sees) -> Tensor:
        """Return the logits of all rows, [n, V]."""
        places = range(len(token_ids))
        visible = torch.tensor([[sees(row, column) for column in places] for row in places])
        hidden = self._weights["model.embed_tokens.weight"][list(token_ids)]
        for layer in range(self._config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            normed = self._norm(hidden, name + "input_layernorm")
            hidden = hidden + self._attend(normed, name + "self_attn.", visible)
            normed = self._norm(hidden, name + "post_attention_layernorm")
            gate = silu(self._linear(normed, name + "mlp.gate_proj"))
            up = self._linear(normed, name + "mlp.up_proj")
            hidden = hidden + self._linear(gate * up, name + "mlp.down_proj")
        return self._linear(self._norm(hidden, "model.norm"), "lm_head")

    def _attend(self, hidden: Tensor, name: str, visible: Tensor) -> Tensor:
        num_heads = self._config["num_attention_heads"]
        num_kv_heads = self._config["num_key_value_heads"]
        query = self._heads(hidden, name + "q_proj", num_heads)
        key = self._heads(hidden, name + "k_proj", num_kv_heads)
        value = self._heads(hidden, name + "v_proj", num_kv_heads)
        if name + "q_norm.weight" in self._weights:
            query, key = self._norm(query, name + "q_norm"), self._norm(key, name + "k_norm")
        query, key = self._rotate(query), self._rotate(key)
        outputs = []
        for head in range(num_heads):
            shared = head // (num_heads // num_kv_heads)
            scores = query[:, head] @ key[:, shared].T / query.shape[-1] ** 0.5
            shares = scores.masked_fill(~visible, -torch.inf).softmax(-1)
            outputs.append(shares @ value[:, shared])
        return self._linear(torch.cat(outputs, 1), name + "o_proj")

    def _heads(self, hidden: Tensor, name: str, num_heads: int) -> Tensor:
        return self._linear(hidden, name).unflatten(1, (num_heads, -1))

    def _rotate(self, heads: Tensor) -> Tensor:
        """Turn pairs of columns by the angles of their rows' positions."""
        half = heads.shape[-1] // 2
        theta = self._config["rope_theta"]
        speeds = theta ** (-torch.arange(half) / half)
        angles = (torch.arange(len(heads))[:, None] * speeds)[:, None]
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat(
            [
                first * angles.cos() - second * angles.sin(),
                second * angles.cos() + first * angles.sin(),
            ],
            -1,
        )

    def _linear(self, rows: Tensor, name: str) -> Tensor:
        product = rows @ self._weights[name + ".weight"].T
        bias = self._weights.get(name + ".bias")
        return product if bias is None else product + bias

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        scale = (rows.square().mean(-1, keepdim=True) + self._config["rms_norm_eps"]).rsqrt()
        return rows * scale * self._weights[name + ".weight"]


def assert_lattice(lattice: Lattice, logits: Tensor, eos: int | None = None) -> None:
    """Check all candidates with their log-probabilities, up to the column that EOS leads."""
    choices = logits.argmax(-1).tolist()
    num_columns = choices.index(eos) + 1 if eos in choices else len(choices)
    assert lattice.num_positions == num_columns
    logprobs = logits.log_softmax(-1)
    for column in range(num_columns - (eos in choices)):
        count = int(lattice.num_candidates[column])
        assert count > NUM_KNOWN_IDS - 5
        token_ids = torch.from_numpy(lattice.token_ids[column, :count]).long()
        expected = logprobs[column][token_ids].numpy()
        np.testing.assert_allclose(lattice.logprobs[column, :count], expected, atol=2e-4)
        assert int(token_ids[0]) == choices[column]


def refined(
    logits_of: Callable[[Sequence[int]], Tensor],
    k: int,
    num_steps: int,
    turn: Callable[[int], int] = lambda _: 0,
) -> Tensor:
    """Return the logits of a refined draft of k tokens, given those after a block of it.

    A position's are those of the step that fixed it. The most confident masks are fixed first, of
    the positions whose turn is first.
    """
    block = [MASK_TOKEN_ID] * k
    logits = logits_of(block)
    scores = logits.clone()
    for _ in range(num_steps - 1):
        confidences, choices = logits.log_softmax(-1).max(-1)
        masked = [i for i in range(k) if block[i] == MASK_TOKEN_ID]
        masked.sort(key=lambda i: (turn(i), -float(confidences[i])))
        for i in masked[: math.ceil(k / num_steps)]:
            block[i] = int(choices[i])
        logits = logits_of(block)
        for i in range(k):
            if block[i] == MASK_TOKEN_ID:
                scores[i] = logits[i]
    return scores

"""Hydra heads: Medusa heads that see the tokens drafted before their own.

Ankner et al., Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding (arXiv 2402.05109).
Head i takes the target's last hidden state and the embeddings of the last token and of the i tokens
drafted after it; its first residual block combines them into one hidden state. It reads the
checkpoints of zankner/Hydra with grounded heads (`hydra_lm_head.pt`, or the same tensors as
safetensors); those without `hydra_lm_head` share the target's head. Hydra++ (`prefix-mlp`) is not
supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import nn

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.medusa import ResidualBlock
from diffuspec.models.heads.nodes import Candidates, Level, Place, likeliest_after
from diffuspec.models.heads.target_layers import TargetLayers, by_padded_rows

PICKLED = ("hydra_lm_head.pt",)


class HydraHeads(nn.Module):
    """The heads alone; their tensors have the checkpoint's names."""

    def __init__(
        self, num_heads: int, num_blocks: int, hidden_size: int, vocab_size: int | None
    ) -> None:
        """vocab_size: None: share the target's head."""
        super().__init__()
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(
                ResidualBlock(hidden_size, num_inputs=head + 2),
                *(ResidualBlock(hidden_size) for _ in range(num_blocks - 1)),
            )
            for head in range(num_heads)
        )
        self.shares_head = vocab_size is None  # the target's head computes the logits
        if vocab_size is not None:
            self.hydra_lm_head = nn.ModuleList(
                nn.Linear(hidden_size, vocab_size) for _ in range(num_heads)
            )

    @property
    def num_heads(self) -> int:
        return len(self.hydra_mlp)

    @classmethod
    def load(cls, path: Path, target: TargetLayers) -> Self:
        """Load a checkpoint that was trained for the target. Raises ModelLoadError."""
        checkpoint = HeadCheckpoint.read(path, PICKLED)
        kind = checkpoint.config.get("hydra_head_arch", "mlp")
        if kind != "mlp" or not checkpoint.config.get("grounded_heads", False):
            raise ModelLoadError(
                f"{path}: hydra_head_arch must be 'mlp', with grounded_heads, got {kind!r} and "
                f"{checkpoint.config.get('grounded_heads', False)!r}"
            )
        num_heads = checkpoint.number("hydra_num_heads", default=4)
        num_blocks = checkpoint.number("hydra_num_layers", default=1)
        is_own = "hydra_lm_head.0.weight" in checkpoint.weights
        vocab_size = target.vocab_size if is_own else None
        model = cls(num_heads, num_blocks, target.hidden_size, vocab_size)
        checkpoint.fill(model)
        return target.place(model)

    def forward(self, head: int, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: [R, (head + 2) * H], the state and the tokens' embeddings.

        Returns the head's output, [R, V or H].
        """
        output: torch.Tensor = self.hydra_mlp[head](inputs)
        return output if self.shares_head else self.hydra_lm_head[head](output)


class HydraDraftModel:
    """A LevelHead: Hydra heads beside their target. Nothing is below the last head's level."""

    def __init__(self, heads: HydraHeads, layers: TargetLayers, target: TargetInfo) -> None:
        self._heads = heads
        self._layers = layers
        self._target = target
        self._states: dict[str, torch.Tensor] = {}  # request id: state of the last token but one

    def begin(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> None:
        pairs = zip(requests, features, strict=True)
        self._states = {request.request_id: one.last for request, one in pairs}

    @torch.inference_mode()
    def candidates(self, level: Level, count: int) -> list[list[Candidates]]:
        depth = len(level[0][1][0].path)
        if depth >= self._heads.num_heads:
            return [[[] for _ in nodes] for _, nodes in level]
        places, paths, states = [], [], []
        for request, nodes in level:
            for node in nodes:
                places.append(Place(request, len(request.prefix) + depth, node.path))
                paths.append([int(request.prefix[-1]), *node.path])
                states.append(self._states[request.request_id])
        embedded = self._layers.embed(torch.tensor(paths, device=self._layers.device))
        inputs = torch.cat([torch.stack(states), embedded.flatten(1)], dim=-1)
        outputs = by_padded_rows(lambda rows: self._heads(depth, rows), inputs)
        logits = self._layers.logits(outputs) if self._heads.shares_head else outputs
        found = iter(likeliest_after(logits, places, self._target, count))
        return [[next(found) for _ in nodes] for _, nodes in level]

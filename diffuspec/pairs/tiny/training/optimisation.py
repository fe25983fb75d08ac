"""Optimisers, schedule, resumable checkpoints and training loop of both models.

Matrices are trained with Muon, all other weights with AdamW, in bfloat16 autocast. The learning
rate warms up, stays constant, then falls linearly to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from diffuspec.pairs.tiny.corpus.data import training_batches
from diffuspec.pairs.tiny.corpus.encoder import Encoder, Example

WARMUP_SHARE = 0.01
DECAY_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Length, batch size and learning rates of a training."""

    num_chunks: int
    tokens_per_batch: int = 2048
    matrix_lr: float = 0.007
    other_lr: float = 1e-3
    seed: int = 7
    report_every: int = 25  # chunks
    stop_after: int | None = None  # chunks after which to stop for now; None: all


class Optimizers:
    """Muon for the matrices of the blocks, AdamW for embeddings, norms and biases."""

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self._all = [
            (torch.optim.Muon(matrices, lr=plan.matrix_lr, weight_decay=0.0), plan.matrix_lr),
            (
                torch.optim.AdamW(others, plan.other_lr, (0.9, 0.98), weight_decay=0.0),
                plan.other_lr,
            ),
        ]
        self._parameters = matrices + others

    def step(self, scale: float) -> None:
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimizer, lr in self._all:
            optimizer.param_groups[0]["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[dict[str, object]]:
        return [optimizer.state_dict() for optimizer, _ in self._all]

    def load(self, state: list[dict[str, object]]) -> None:
        for (optimizer, _), saved in zip(self._all, state, strict=True):
            optimizer.load_state_dict(saved)


def lr_scale(progress: float) -> float:
    """Return the factor of the learning rate at progress in [0, 1]."""
    return min(1.0, progress / WARMUP_SHARE + 0.02, (1 - progress) / DECAY_SHARE)


def train(
    model: nn.Module,
    loss_of: Callable[[list[Example]], torch.Tensor],
    report: Callable[[], str],
    encoder: Encoder,
    plan: TrainingPlan,
    checkpoint: Path,
    answered: Sequence[Example] = (),
) -> None:
    """Run the plan to its end, from the last checkpoint if there is one.

    answered: examples with the target's own answers, for a drafter.
    """
    optimizers = Optimizers(model, plan)
    start = _resume(model, optimizers, checkpoint)
    end = plan.num_chunks if plan.stop_after is None else plan.stop_after
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(checkpoint.stem, total=plan.num_chunks, completed=start)
        for chunk in range(start, end):
            progress = chunk / plan.num_chunks
            losses = []
            size = plan.tokens_per_batch
            for batch in training_batches(encoder, plan.seed, chunk, progress, size, answered):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(batch)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizers.step(lr_scale(progress))
                losses.append(loss.item())
            mean = sum(losses) / len(losses)
            bar.update(task, completed=chunk + 1, description=f"{checkpoint.stem} loss {mean:.3f}")
            if (chunk + 1) % plan.report_every == 0 or chunk + 1 == end:
                _save(model, optimizers, checkpoint, chunk + 1)
                console.print(f"chunk {chunk + 1} loss {mean:.4f} {report()}")


def _save(model: nn.Module, optimizers: Optimizers, checkpoint: Path, chunk: int) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": optimizers.state(),
        "chunk": chunk,
        "random": torch.get_rng_state(),
    }
    part = checkpoint.with_suffix(".part")
    torch.save(state, part)
    part.replace(checkpoint)


def _resume(model: nn.Module, optimizers: Optimizers, checkpoint: Path) -> int:
    if not checkpoint.exists():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        return 0
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizers.load(state["optimizers"])
    torch.set_rng_state(state["random"])
    chunk: int = state["chunk"]
    return chunk

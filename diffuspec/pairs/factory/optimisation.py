"""Optimisers, schedule, resumable checkpoints and the training loop.

Matrices are trained with Muon, all other weights with AdamW, in bfloat16 autocast. The learning
rate warms up, stays constant, then falls linearly to zero at the end of the plan, which is a number
of chunks or of seconds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from torch import nn

from diffuspec.pairs.factory.muon import BatchedMuon

WARMUP_SHARE = 0.01
SECONDS_PER_REPORT = 60.0  # between two reports, if a training is planned in seconds
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Length and learning rates of a training."""

    num_chunks: int  # without effect if seconds are given
    matrix_lr: float = 0.007
    other_lr: float = 1e-3
    decay_share: float = 0.95  # share of the training in which the learning rate falls to 0
    report_every: int = 25  # number of chunks
    stop_after: int | None = None  # number of chunks after which to stop for now; None: train all
    seconds: float | None = None  # time after which the training ends, all its processes together

    def progress(self, chunk: int, seconds: float) -> float:
        """Return the share of the training done after so many chunks and seconds, up to 1."""
        done = chunk / self.num_chunks if self.seconds is None else seconds / self.seconds
        return min(1.0, done)

    def is_over(self, chunk: int, seconds: float) -> bool:
        if self.stop_after is not None and chunk >= self.stop_after:
            return True
        return self.progress(chunk, seconds) >= 1

    def is_report_due(self, chunk: int, seconds: float, since: float) -> bool:
        """since: seconds since the last report."""
        if self.seconds is None:
            due = chunk % self.report_every == 0
        else:
            due = since >= SECONDS_PER_REPORT
        return due or self.is_over(chunk, seconds)


@dataclass(frozen=True, slots=True)
class Progressed:
    """The numbers in a report."""

    chunk: int  # chunks trained so far
    loss: float  # mean over the last chunk
    seconds: float  # time that the training has taken, all its processes together


class Optimizers:
    """Muon for the trained matrices of the blocks, AdamW for other trained weights."""

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self._all: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            kind = torch.optim.Muon if matrices[0].device.type == "cpu" else BatchedMuon
            muon = kind(matrices, lr=plan.matrix_lr, weight_decay=0.0)
            self._all.append((muon, plan.matrix_lr))
        if others:
            adam = torch.optim.AdamW(others, plan.other_lr, (0.9, 0.98), weight_decay=0.0)
            self._all.append((adam, plan.other_lr))
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


def lr_scale(progress: float, decay_share: float = 0.95) -> float:
    """Return the learning rate's factor at progress in [0, 1]."""
    return min(1.0, progress / WARMUP_SHARE + 0.02, (1 - progress) / decay_share)


def train(
    model: nn.Module,
    chunk_of: Callable[[int], Iterable[T]],
    loss_of: Callable[[T], torch.Tensor],
    report: Callable[[Progressed], str],
    plan: TrainingPlan,
    checkpoint: Path,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the plan to its end, from the last checkpoint if there is one.

    chunk_of: returns the batches of a chunk, the same on every call. After every report_every
    chunks, or every minute of a plan in seconds, a checkpoint is written and the result of `report`
    is printed.
    """
    optimizers = Optimizers(model, plan)
    done = _resume(model, optimizers, checkpoint)
    began = reported = clock() - done.seconds
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(checkpoint.stem, total=1.0)
        while not plan.is_over(done.chunk, done.seconds):
            progress = plan.progress(done.chunk, done.seconds)
            bar.update(task, completed=progress)
            scale = lr_scale(progress, plan.decay_share)
            mean = _train_chunk(chunk_of(done.chunk), loss_of, optimizers, scale)
            done = Progressed(done.chunk + 1, mean, clock() - began)
            bar.update(task, description=f"{checkpoint.stem} loss {mean:.3f}")
            if plan.is_report_due(done.chunk, done.seconds, began + done.seconds - reported):
                _save(model, optimizers, checkpoint, done)
                console.print(f"chunk {done.chunk} loss {mean:.4f} {report(done)}")
                reported = clock()
        bar.update(task, completed=plan.progress(done.chunk, done.seconds))


def _train_chunk(
    batches: Iterable[T],
    loss_of: Callable[[T], torch.Tensor],
    optimizers: Optimizers,
    scale: float,
) -> float:
    """Return the mean loss."""
    losses = []
    for batch in batches:
        loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers.step(scale)
        losses.append(loss.detach())  # waiting for each loss would idle a GPU
    return float(torch.stack(losses).mean())


def mixed_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Run matrix products in bfloat16."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _save(model: nn.Module, optimizers: Optimizers, checkpoint: Path, done: Progressed) -> None:
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    state = {
        "model": {name: p for name, p in model.state_dict().items() if name in trained},
        "optimizers": optimizers.state(),
        "chunk": done.chunk,
        "seconds": done.seconds,
        "random": torch.get_rng_state(),
    }
    part = checkpoint.with_suffix(".part")
    torch.save(state, part)
    part.replace(checkpoint)


def _resume(model: nn.Module, optimizers: Optimizers, checkpoint: Path) -> Progressed:
    """Load the checkpoint, if there is one. Return how far the training is."""
    if not checkpoint.exists():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        return Progressed(0, math.nan, 0.0)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"], strict=False)
    optimizers.load(state["optimizers"])
    torch.set_rng_state(state["random"])
    return Progressed(state["chunk"], math.nan, state.get("seconds", 0.0))

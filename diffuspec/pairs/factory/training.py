"""Trains a drafter for a target on files of its answers, and exports it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ConfigError
from diffuspec.pairs.factory.acceptance import Acceptance, measure_acceptance
from diffuspec.pairs.factory.examples import (
    Batch,
    Example,
    ExampleFiles,
    batches_by_length,
    chunk_of_batches,
    pad,
)
from diffuspec.pairs.factory.export import save_drafter
from diffuspec.pairs.factory.layers import choose_layers, keep_layers
from diffuspec.pairs.factory.loss import Head, LossConfig, draft_loss, frequent_ids
from diffuspec.pairs.factory.optimisation import (
    Progressed,
    TrainingPlan,
    mixed_precision,
    train,
)
from diffuspec.text.tokenizer import load_tokenizer

NUM_CHOOSING_EXAMPLES = 4  # that layers are chosen on
NUM_REPORT_EXAMPLES = 48  # held out
PROBES = 6  # drafts at each of them


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """What to train, on what and how long."""

    target: Path
    out: Path
    answers: tuple[Path, ...]
    layers: int | tuple[int, ...] = 10  # how many of the target's; or which
    num_chunks: int = 200
    tokens_per_batch: int = 4096
    max_tokens: int = 1024  # of an example
    matrix_lr: float = 0.004
    other_lr: float = 1e-3
    head_tokens: int | None = 8192  # most frequent ones, that the loss computes; None: all
    min_block: int = 4
    max_block: int = 12
    report_every: int = 4
    seed: int = 0
    device: str = "cpu"
    compiles: bool = False
    stop_after: int | None = None  # chunks

    def optimisation(self) -> TrainingPlan:
        return TrainingPlan(
            self.num_chunks,
            self.matrix_lr,
            self.other_lr,
            decay_share=0.4,
            report_every=self.report_every,
            stop_after=self.stop_after,
        )


class DrafterTraining:
    """One training in its output directory; goes on from a checkpoint that is there."""

    def __init__(self, plan: DrafterPlan) -> None:
        """Read the target and the answers there are. Raises ModelLoadError, ConfigError."""
        self.plan = plan
        self.device = torch.device(plan.device)
        self.files = ExampleFiles(plan.answers, plan.max_tokens)
        self.files.read_new()
        if not self.files.held_out:
            raise ConfigError(
                f"{len(self.files.training)} answers are too few: none of them is held out"
            )
        torch.manual_seed(plan.seed)
        self._tokenizer = load_tokenizer(plan.target)
        target: Any = AutoModelForCausalLM.from_pretrained(
            plan.target, dtype=torch.float32, trust_remote_code=False, local_files_only=True
        )
        self.layers = self._find_layers(target.to(self.device))
        self.model = keep_layers(target, self.layers).to(self.device).train()
        for embeddings in (self.model.get_input_embeddings(), self.model.get_output_embeddings()):
            embeddings.requires_grad_(False)
        self._config = LossConfig(
            unused_token_id(self._tokenizer, self.files.training),
            min_block=plan.min_block,
            max_block=plan.max_block,
            clean_weight=1.0,
            position_decay=0.9,
            revealed_share=0.1,
        )
        self._head = Head(self.model, self._head_ids())
        if plan.compiles:
            for layer in self.model.get_decoder().layers:
                layer.compile(dynamic=True)

    def run(self) -> None:
        """Train to the end of the plan, and export."""
        checkpoint = self.plan.out / "training" / "drafter.pt"
        train(
            self.model,
            self._chunk,
            self._loss,
            self._report,
            self.plan.optimisation(),
            checkpoint,
        )
        self.export()

    def export(self) -> None:
        save_drafter(self.model, self.plan.target, self._config.mask_token_id, self.plan.out)

    def measure(self) -> Acceptance:
        """Measure argmax drafts on held-out answers."""
        held_out = self.files.held_out[:NUM_REPORT_EXAMPLES]
        batches = [
            pad(batch).to(self.device)
            for batch in batches_by_length(held_out, self.plan.tokens_per_batch, random.Random(0))
        ]
        self.model.eval()
        with mixed_precision(self.device):
            found = measure_acceptance(
                self.model, batches, self._config.mask_token_id, self.plan.max_block, PROBES
            )
        self.model.train()
        return found

    def _chunk(self, chunk: int) -> Iterator[Batch]:
        self.files.read_new()
        batches = chunk_of_batches(
            self.files.training, self.plan.seed, chunk, self.plan.tokens_per_batch
        )
        return (pad(batch).to(self.device) for batch in batches)

    def _loss(self, batch: Batch) -> torch.Tensor:
        with mixed_precision(self.device):
            return draft_loss(self.model, batch, self._config, self._head)

    def _report(self, done: Progressed) -> str:
        found = self.measure()
        line = {
            "chunk": done.chunk,
            "loss": done.loss,
            "seconds": done.seconds,
            "num_examples": len(self.files.training),
            "right_by_position": found.right_by_position,
            "acceptance": found.mean,
        }
        with (self.plan.out / "training" / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return f"{done.seconds:.0f} s, {len(self.files.training)} answers, {found}"

    def _find_layers(self, target: Any) -> list[int]:
        """Return the plan's layers, those chosen by an earlier run, or choose and note them."""
        if isinstance(self.plan.layers, tuple):
            return list(self.plan.layers)
        note = self.plan.out / "training" / f"layers-{self.plan.layers}.json"
        if note.exists():
            found: list[int] = json.loads(note.read_text())
            return found
        few = sorted(self.files.held_out, key=lambda example: example.num_tokens)
        middle = len(few) // 2
        batch = pad(few[middle : middle + NUM_CHOOSING_EXAMPLES]).to(self.device)
        with mixed_precision(self.device):
            kept = choose_layers(target, batch, self.plan.layers)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(kept))
        return kept

    def _head_ids(self) -> torch.Tensor | None:
        count = self.plan.head_tokens
        if count is None:
            return None
        return frequent_ids(self.files.training, count).to(self.device)


def unused_token_id(tokenizer: Any, examples: Sequence[Example]) -> int:
    """Return a special token that never occurs, to be the mask. Raises ConfigError."""
    seen = {token for example in examples for token in example.token_ids}
    special = sorted(set(tokenizer.added_tokens_decoder) - set(tokenizer.all_special_ids))
    for token_id in (*special, *sorted(tokenizer.all_special_ids)):
        if token_id not in seen and token_id != tokenizer.eos_token_id:
            return int(token_id)
    raise ConfigError("no special token is unused, to be the mask: name one that is rare")

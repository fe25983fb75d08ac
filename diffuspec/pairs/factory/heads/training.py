"""Trains draft heads for a target on files of its answers, and exports them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import save_file

from diffuspec.core.files import append_line
from diffuspec.models.heads.target_layers import layers_of
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.pairs.factory.acceptance import Acceptance
from diffuspec.pairs.factory.examples import Batch, ExampleFiles, batches_by_length, pad
from diffuspec.pairs.factory.export import Storage, replacing_files, stored
from diffuspec.pairs.factory.heads.dflash import DFlashLearner, settings_for
from diffuspec.pairs.factory.heads.eagle import EagleLearner
from diffuspec.pairs.factory.heads.guesses import HydraLearner, MedusaLearner
from diffuspec.pairs.factory.heads.learner import Learner, Rows
from diffuspec.pairs.factory.loss import Head, frequent_ids
from diffuspec.pairs.factory.optimisation import (
    Progressed,
    TrainingPlan,
    mixed_precision,
    train,
)
from diffuspec.pairs.factory.start import begin, compile_layers, load_target

HeadKind: TypeAlias = Literal["medusa", "hydra", "eagle", "dflash"]
MATRIX_LRS: dict[HeadKind, float] = {
    "medusa": 0.01,
    "hydra": 0.01,
    "eagle": 0.003,
    "dflash": 0.004,
}
NUM_REPORT_EXAMPLES = 48  # held-out examples in a report
TOKENS_PER_MEASURED_BATCH = 4096


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """The heads to train, the data and the length. They share the target's embeddings and head."""

    kind: HeadKind
    target: Path
    out: Path
    answers: tuple[Path, ...]
    num_chunks: int = 60
    tokens_per_batch: int = 2048
    max_tokens: int = 1024  # most tokens of an example
    matrix_lr: float | None = None  # None: a default that suits the kind
    other_lr: float = 1e-3
    head_tokens: int | None = 8192  # most frequent tokens, to which the loss is limited; None: all
    num_blocks: int = 2  # residual blocks of a Medusa or Hydra head
    layers: int | tuple[int, ...] = 5  # the target's layers from which a DFlash drafter starts
    block_size: int = 12  # rows of a DFlash drafter's block
    report_every: int = 5
    seed: int = 0
    device: str = "cpu"
    compiles: bool = False  # whether the target's layers are compiled
    storage: Storage = "bfloat16"  # format of the exported weights
    stop_after: int | None = None  # number of chunks after which to stop; None: train all
    seconds: float | None = None  # length of the training, instead of num_chunks


class HeadTraining:
    """One training in its output directory; resumes from an existing checkpoint.

    On a GPU the target is in bfloat16, as when it verifies there.
    """

    def __init__(self, plan: HeadPlan) -> None:
        """Read the target and the existing answers. Raises ConfigError."""
        self.plan = plan
        self.device = torch.device(plan.device)
        self.files = ExampleFiles(plan.answers, plan.max_tokens)
        self.files.read_enough()
        torch.manual_seed(plan.seed)
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        target = load_target(plan.target, dtype).to(self.device).eval().requires_grad_(False)
        self._target = target
        head_ids = frequent_ids(self.files.training, plan.head_tokens)
        self._head = Head(target, head_ids)
        self._learner = self._make_learner()
        self.heads = self._learner.module.to(self.device).train()
        if plan.compiles:
            hooked = self._learner.hidden_layers
            layers = target.base_model.layers
            compile_layers([x for number, x in enumerate(layers) if number not in hooked])

    def run(self) -> None:
        """Train to the end of the plan, and export."""
        plan = self.plan
        optimisation = TrainingPlan(
            plan.num_chunks,
            plan.matrix_lr or MATRIX_LRS[plan.kind],
            plan.other_lr,
            report_every=plan.report_every,
            stop_after=plan.stop_after,
            seconds=plan.seconds,
        )
        checkpoint = plan.out / "training" / f"{plan.kind}.pt"
        train(self.heads, self._chunk, self._loss, self._report, optimisation, checkpoint)
        self.export()

    def export(self) -> None:
        """Write config.json and the heads' weights."""
        config = json.dumps(self._learner.config(), indent=2)
        weights = stored(dict(self.heads.named_parameters()), self.plan.storage)
        with replacing_files(self.plan.out) as part:
            (part / "config.json").write_text(config + "\n", encoding="utf-8")
            save_file(weights, part / "model.safetensors", {"format": "pt"})

    @torch.inference_mode()
    def measure(self) -> Acceptance:
        """Measure the likeliest guesses on held-out answers."""
        few = self.files.held_out[:NUM_REPORT_EXAMPLES]
        self.heads.eval()
        # Compiling for a few batches does not pay.
        with mixed_precision(self.device), torch.compiler.set_stance("force_eager"):
            flags = torch.cat(
                [
                    self._learner.right(self._rows(pad(batch).to(self.device)))
                    for batch in batches_by_length(few, TOKENS_PER_MEASURED_BATCH, random.Random(0))
                ]
            )
        self.heads.train()
        shares = flags.long().cumprod(-1).float().mean(0).tolist()
        return Acceptance(tuple(shares), len(flags))

    def _make_learner(self) -> Learner:
        layers = layers_of(self._target)
        if self.plan.kind == "medusa":
            return MedusaLearner(layers, self.plan.num_blocks)
        if self.plan.kind == "hydra":
            return HydraLearner(layers, self.plan.num_blocks)
        batch = self.files.typical_batch().to(self.device)
        if self.plan.kind == "eagle":
            return EagleLearner(self._target, layers, batch.token_ids)
        start = begin(self.plan, self._target, batch, self.files.training)
        settings = settings_for(
            self._target.config, len(start.layers), self.plan.block_size, start.mask_token_id
        )
        return DFlashLearner(self._target, layers, settings, start.layers, batch.token_ids)

    def _chunk(self, chunk: int) -> Iterator[Batch]:
        plan = self.plan
        return self.files.batches(plan.seed, chunk, plan.tokens_per_batch, self.device)

    def _rows(self, batch: Batch) -> Rows:
        layers = self._learner.hidden_layers
        recorded = HiddenStates(layers)
        with torch.no_grad(), recorded.record(self._target):
            output = self._target.base_model(input_ids=batch.token_ids, use_cache=False)
        features = [recorded.batch(layer) for layer in layers]
        return Rows(batch, output.last_hidden_state, torch.cat(features, -1) if features else None)

    def _loss(self, batch: Batch) -> torch.Tensor:
        with mixed_precision(self.device):
            return self._learner.loss(self._rows(batch), self._head)

    def _report(self, done: Progressed) -> str:
        self.export()  # a training that is killed leaves its heads
        found = self.measure()
        line: dict[str, Any] = {
            "chunk": done.chunk,
            "loss": done.loss,
            "seconds": done.seconds,
            "right": found.right_by_position,
        }
        append_line(self.plan.out / "training" / "curve.jsonl", json.dumps(line))
        return f"{done.seconds:.0f} s, {found}"

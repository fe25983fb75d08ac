"""Trains a diffusion LM or a causal LM on files of a target's answers, and exports it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from diffuspec.core.errors import ConfigError
from diffuspec.core.files import append_line
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.families import DiffusionAttention, DiffusionSettings
from diffuspec.pairs.factory.acceptance import Acceptance, measure_acceptance
from diffuspec.pairs.factory.examples import (
    BATCHES_PER_CHUNK,
    Batch,
    Example,
    ExampleFiles,
    batches_by_length,
    pad,
)
from diffuspec.pairs.factory.export import Storage, save_drafter
from diffuspec.pairs.factory.head_loss import ROWS_ON_CPU, ROWS_ON_GPU
from diffuspec.pairs.factory.loss import Head, LossConfig, draft_loss, frequent_ids
from diffuspec.pairs.factory.optimisation import (
    Progressed,
    TrainingPlan,
    mixed_precision,
    train,
)
from diffuspec.pairs.factory.packed_loss import (
    PackedExamples,
    PackedLoss,
    can_pack,
    packed_shape,
)
from diffuspec.pairs.factory.packing import MASKED_ROWS, Packed
from diffuspec.pairs.factory.start import (
    begin,
    begin_with,
    compile_layers,
    keep_layers,
    load_target,
)
from diffuspec.pairs.factory.throughput import Throughput

NUM_REPORT_EXAMPLES = 48  # held-out examples in a report
MAX_EXAMPLE_TOKENS = 1024
PROBES = 6  # drafts measured in each example
TOKENS_PER_MEASURED_BATCH = 2048
BYTES_PER_LAYER_ROW = 130  # bytes of activations per column of the hidden states


ModelKind: TypeAlias = Literal["diffuspec", "sps"]


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """The model to train, the data and the length."""

    target: Path
    out: Path
    answers: tuple[Path, ...]
    kind: ModelKind = "diffuspec"
    attention: DiffusionAttention = "block_causal"
    block_size: int = 1  # size of aligned blocks
    layers: int | tuple[int, ...] = 10  # number of the target's layers, or their indices
    start: Path | None = None  # a drafter to train on from, instead of the target's layers
    num_chunks: int = 200
    tokens_per_batch: int = 4096
    max_tokens: int = MAX_EXAMPLE_TOKENS  # most tokens of an example
    matrix_lr: float = 0.004
    other_lr: float = 1e-3
    head_tokens: int | None = 8192  # most frequent tokens, to which the loss is limited; None: all
    min_block: int = 4
    max_block: int = 12
    report_every: int = 4
    seed: int = 0
    device: str = "cpu"
    compiles: bool = False
    storage: Storage = "bfloat16"  # format of the exported weights
    stop_after: int | None = None  # number of chunks after which to stop; None: train all
    seconds: float | None = None  # length of the training, instead of num_chunks

    def describe_memory(self) -> str:
        """Describe the training's maximum memory. Raises ModelLoadError."""
        checkpoint = inspect_checkpoint(self.target)
        config = checkpoint.config
        num_layers = int(config["num_hidden_layers"])
        kept = self.layers if isinstance(self.layers, int) else len(self.layers)
        share = min(1.0, kept / num_layers)
        weights = 4 * checkpoint.num_weights  # bytes of the target's weights in float32
        states = 4 * 3 * share * checkpoint.num_weights  # gradients and optimiser states
        # Clean rows and masked rows; sps has no masked rows, and full attention few.
        has_few_masks = self.kind == "sps" or self.attention == "full"
        rows = self.tokens_per_batch * (1.0 if has_few_masks else 1.0 + MASKED_ROWS)
        hidden, head = int(config["hidden_size"]), self.head_tokens or int(config["vocab_size"])
        logits = head * 12 * (ROWS_ON_CPU if self.device == "cpu" else ROWS_ON_GPU)
        activations = rows * kept * hidden * BYTES_PER_LAYER_ROW + logits
        total = weights + states + activations
        return (
            f"the training takes up to {total / 2**30:.1f} GiB: {weights / 2**30:.1f} for weights, "
            f"{states / 2**30:.1f} for the optimisers, {activations / 2**30:.1f} for a batch"
        )

    @property
    def attention_name(self) -> DiffusionAttention | None:
        """The attention of the drafter; None for a causal LM."""
        return None if self.kind == "sps" else self.attention

    @property
    def checkpoint_name(self) -> str:
        """File name, different for each kind of training, since no checkpoint fits another kind."""
        if self.kind == "sps":
            return "sps.pt"
        if self.attention == "block_aligned":
            return f"aligned-{self.block_size}.pt"
        return "full.pt" if self.attention == "full" else "drafter.pt"

    def optimisation(self) -> TrainingPlan:
        return TrainingPlan(
            self.num_chunks,
            self.matrix_lr,
            self.other_lr,
            decay_share=0.4,
            report_every=self.report_every,
            stop_after=self.stop_after,
            seconds=self.seconds,
        )


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One report of a training: a line in curve.jsonl."""

    chunk: int
    num_answer_tokens: int  # trained on so far, including repetitions
    loss: float
    seconds: float  # time that the training has taken
    num_answers: int  # answers available for training
    acceptance: float
    right_by_position: tuple[float, ...]


def read_curve(path: Path) -> list[CurvePoint]:
    """Read a curve. If a chunk was reported twice, because of a restart, the last report counts."""
    points = [CurvePoint(**json.loads(line)) for line in path.read_text().splitlines()]
    return sorted({point.chunk: point for point in points}.values(), key=lambda point: point.chunk)


class DrafterTraining:
    """One training in its output directory; resumes from an existing checkpoint.

    On a GPU with Triton, batches are packed and layers compiled; elsewhere batches are padded.
    """

    def __init__(self, plan: DrafterPlan) -> None:
        """Read the target and the existing answers. Raises ModelLoadError, ConfigError."""
        self.plan = plan
        self._on_report: Callable[[list[CurvePoint]], None] = lambda curve: None
        self.device = torch.device(plan.device)
        self.files = ExampleFiles(plan.answers, plan.max_tokens)
        self.files.read_enough()
        torch.manual_seed(plan.seed)
        target = load_target(plan.target).to(self.device)
        batch = self.files.typical_batch().to(self.device)
        if plan.start is None:
            self.start = begin(plan, target, batch, self.files.training)
            model = keep_layers(target, self.start.layers)
        else:
            self.start, model = begin_with(plan.start, target, plan.attention_name)
        self.model = model.to(self.device).train()
        for embeddings in (self.model.get_input_embeddings(), self.model.get_output_embeddings()):
            embeddings.requires_grad_(False)
        self._config = self._loss_config()
        self._head_ids = frequent_ids(self.files.training, plan.head_tokens)
        self._head = Head(self.model, self._head_ids)
        self._throughput = Throughput(self.model, self._head)
        self._packed: PackedLoss | None = None
        layers = self.model.get_decoder().layers
        if can_pack(self.model, self._config, self.device):
            shape = packed_shape(self._config, plan.tokens_per_batch)
            examples = PackedExamples(shape, plan.seed, self.device)
            self._packed = PackedLoss(self.model, examples, self._config, self._head)
            compile_layers(layers, dynamic=False)
        elif plan.compiles:
            compile_layers(layers)

    @property
    def settings(self) -> DiffusionSettings | None:
        """How the model is run; None for a causal LM."""
        plan, mask = self.plan, self.start.mask_token_id
        if plan.kind == "sps":
            return None
        return DiffusionSettings(mask, plan.attention, block_size=plan.block_size)

    def run(self, on_report: Callable[[list[CurvePoint]], None] = lambda curve: None) -> None:
        """Train to the end of the plan, and export.

        After every report, on_report is called with the curve so far.
        """
        self._on_report = on_report
        checkpoint = self.plan.out / "training" / self.plan.checkpoint_name
        self._throughput.start()
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
        save_drafter(
            self.model,
            self.plan.target,
            self.settings,
            self.plan.out,
            self.plan.storage,
            self._head_ids,
        )

    def measure(self) -> Acceptance:
        """Measure argmax drafts on held-out answers."""
        held_out = self.files.held_out[:NUM_REPORT_EXAMPLES]
        return measure_drafts(self.model, held_out, self.settings, self.plan.max_block)

    def _chunk(self, chunk: int) -> Iterator[Batch | Packed]:
        plan = self.plan
        if self._packed is not None:
            self.files.read_new()
            return self._packed.examples.batches(self.files.training, chunk)
        return self.files.batches(plan.seed, chunk, plan.tokens_per_batch, self.device)

    def _loss(self, batch: Batch | Packed) -> torch.Tensor:
        with mixed_precision(self.device):
            if isinstance(batch, Packed):
                assert self._packed is not None
                return self._packed(batch)
            return draft_loss(self.model, batch, self._config, self._head)

    def _report(self, done: Progressed) -> str:
        rate = self._throughput.describe()
        self.export()  # a training that is killed leaves a drafter
        found = self.measure()
        point = CurvePoint(
            done.chunk,
            self._answer_tokens(done.chunk),
            done.loss,
            done.seconds,
            len(self.files.training),
            found.mean,
            found.right_by_position,
        )
        path = self.plan.out / "training" / "curve.jsonl"
        append_line(path, json.dumps(asdict(point)))
        self._on_report(read_curve(path))
        self._throughput.start()
        return (
            f"{done.seconds:.0f} s, {point.num_answer_tokens:,} of the answers' tokens seen, "
            f"{point.num_answers} answers, {rate}, {found}"
        )

    def _answer_tokens(self, num_chunks: int) -> int:
        """Return the number of answer tokens in this many chunks, estimated from their share."""
        examples = self.files.training
        num_tokens = sum(example.num_tokens for example in examples)
        share = sum(sum(example.is_answer) for example in examples) / num_tokens
        return round(num_chunks * BATCHES_PER_CHUNK * self.plan.tokens_per_batch * share)

    def _loss_config(self) -> LossConfig:
        return LossConfig(
            None if self.plan.kind == "sps" else self.start.mask_token_id,
            self.plan.attention,
            self.plan.block_size,
            min_block=self.plan.min_block,
            max_block=self.plan.max_block,
            clean_weight=1.0,
            position_decay=0.9,
            revealed_share=0.1,
        )


def choose_device(name: str, num_threads: int | None) -> str:
    """Return the device named by `auto`, `cpu` or `cuda`, and set the number of CPU threads.

    Raises ConfigError.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda, got {name!r:.40}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device: no CUDA device is available")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    is_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return "cuda" if is_cuda else "cpu"


def measure_drafts(
    model: Any,
    examples: Sequence[Example],
    settings: DiffusionSettings | None,
    num_draft_tokens: int,
) -> Acceptance:
    """Measure argmax drafts, in bfloat16, at PROBES positions of each answer.

    Without settings, drafts are made token by token.
    """
    device = next(model.parameters()).device
    batches = [
        pad(batch).to(device)
        for batch in batches_by_length(examples, TOKENS_PER_MEASURED_BATCH, random.Random(0))
    ]
    was_training = model.training
    model.eval()
    # Compiling for a few batches does not pay.
    with mixed_precision(device), torch.compiler.set_stance("force_eager"):
        found = measure_acceptance(model, batches, settings, num_draft_tokens, PROBES)
    model.train(was_training)
    return found

"""Trains Medusa, Hydra and EAGLE heads for a target on files of its answers, and exports them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen2Config

from diffuspec.models.heads.eagle import EagleHead
from diffuspec.models.heads.hydra import HydraHeads
from diffuspec.models.heads.medusa import MedusaHeads
from diffuspec.models.heads.target_layers import layers_of
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.pairs.factory.examples import (
    Batch,
    ExampleFiles,
    batches_by_length,
    pad,
)
from diffuspec.pairs.factory.head_losses import (
    Rows,
    ahead,
    eagle_loss,
    guess_states,
    hydra_loss,
    medusa_loss,
    with_guesses,
)
from diffuspec.pairs.factory.layers import load_target
from diffuspec.pairs.factory.optimisation import (
    Progressed,
    TrainingPlan,
    mixed_precision,
    train,
)

HeadKind: TypeAlias = Literal["medusa", "hydra", "eagle"]
MATRIX_LRS: dict[HeadKind, float] = {"medusa": 0.01, "hydra": 0.01, "eagle": 0.003}
NUM_HEADS = 4
DEPTH = 3  # guesses measured after a row
NUM_REPORT_EXAMPLES = 48  # held out


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What to train, on what and how long. All heads share the target's embeddings and head."""

    kind: HeadKind
    target: Path
    out: Path
    answers: tuple[Path, ...]
    num_chunks: int = 60
    tokens_per_batch: int = 2048
    max_tokens: int = 1024  # of an example
    matrix_lr: float | None = None  # None: what suits the kind
    other_lr: float = 1e-3
    num_blocks: int = 2  # residual blocks of a Medusa or Hydra head
    report_every: int = 5
    seed: int = 0
    stop_after: int | None = None  # chunks


class HeadTraining:
    """One training in its output directory; goes on from a checkpoint that is there."""

    def __init__(self, plan: HeadPlan) -> None:
        """Read the target and the answers there are. Raises ConfigError."""
        self.plan = plan
        self.files = ExampleFiles(plan.answers, plan.max_tokens)
        self.files.read_enough()
        torch.manual_seed(plan.seed)
        self._target = load_target(plan.target).eval().requires_grad_(False)
        self._layers = layers_of(self._target)
        self.heads = self._make_heads().train()

    def run(self) -> None:
        """Train to the end of the plan, and export."""
        plan = self.plan
        optimisation = TrainingPlan(
            plan.num_chunks,
            plan.matrix_lr or MATRIX_LRS[plan.kind],
            plan.other_lr,
            report_every=plan.report_every,
            stop_after=plan.stop_after,
        )
        checkpoint = plan.out / "training" / f"{plan.kind}.pt"
        train(self.heads, self._chunk, self._loss, self._report, optimisation, checkpoint)
        self.export()

    def export(self) -> None:
        """Write config.json and the heads' weights, in bfloat16."""
        self.plan.out.mkdir(parents=True, exist_ok=True)
        config = json.dumps(self._head_config(), indent=2)
        (self.plan.out / "config.json").write_text(config + "\n", encoding="utf-8")
        module = self.heads.heads if isinstance(self.heads, MedusaHeads) else self.heads
        weights = {
            name: tensor.detach().to(torch.bfloat16).contiguous()
            for name, tensor in module.named_parameters()
        }
        save_file(weights, self.plan.out / "model.safetensors", {"format": "pt"})

    @torch.inference_mode()
    def measure(self) -> list[float]:
        """Return, by depth, the share of held-out rows whose likeliest guesses are all right."""
        few = self.files.held_out[:NUM_REPORT_EXAMPLES]
        batches = batches_by_length(few, self.plan.tokens_per_batch, random.Random(0))
        flags = torch.cat([self._right(self._rows(pad(batch))) for batch in batches])
        shares: list[float] = flags.long().cumprod(-1).float().mean(0).tolist()
        return shares

    def _make_heads(self) -> MedusaHeads | HydraHeads | EagleHead:
        size, blocks = self._layers.hidden_size, self.plan.num_blocks
        if self.plan.kind == "medusa":
            return MedusaHeads(NUM_HEADS, blocks, size, None)
        if self.plan.kind == "hydra":
            return HydraHeads(NUM_HEADS, blocks, size, None)
        few = pad(self.files.held_out[:4]).token_ids
        return start_from_last_layer(self._target, few)

    def _head_config(self) -> dict[str, Any]:
        if isinstance(self.heads, EagleHead):
            return eagle_config(self._target.config).to_diff_dict()
        kind = self.plan.kind
        shared = {f"{kind}_num_heads": NUM_HEADS, f"{kind}_num_layers": self.plan.num_blocks}
        more = {"hydra_head_arch": "mlp", "grounded_heads": True} if kind == "hydra" else {}
        return shared | more

    def _chunk(self, chunk: int) -> Iterator[Batch]:
        return self.files.batches(self.plan.seed, chunk, self.plan.tokens_per_batch)

    def _rows(self, batch: Batch) -> Rows:
        with torch.no_grad():
            output = self._target.base_model(input_ids=batch.token_ids, use_cache=False)
        return Rows(batch, output.last_hidden_state)

    def _loss(self, batch: Batch) -> torch.Tensor:
        with mixed_precision(torch.device("cpu")):
            rows = self._rows(batch)
            if isinstance(self.heads, MedusaHeads):
                return medusa_loss(self.heads, self._layers, rows)
            if isinstance(self.heads, HydraHeads):
                return hydra_loss(self.heads, self._layers, rows)
            return eagle_loss(self.heads, self._layers, rows)

    def _right(self, rows: Rows) -> torch.Tensor:
        """Mark which guesses are right, of rows with all tokens that are guessed, [R, DEPTH]."""
        token_ids = rows.batch.token_ids
        kept = rows.wanted(DEPTH + 1)
        guesses, states = [], rows.states
        for depth in range(DEPTH):
            if isinstance(self.heads, MedusaHeads):
                output = self.heads.heads[depth](rows.states)
            elif isinstance(self.heads, HydraHeads):
                before = [ahead(token_ids, step) for step in range(1, depth + 2)]
                embedded = [self._layers.embed(ids) for ids in before]
                output = self.heads(depth, torch.cat([rows.states, *embedded], dim=-1))
            else:
                guessed = guess_states(self.heads, self._layers, token_ids, states)
                output = ahead(guessed, depth)
                states = with_guesses(rows, guessed)
            guesses.append(self._layers.head(output).argmax(-1) == ahead(token_ids, depth + 2))
        return torch.stack(guesses, dim=-1)[kept]

    def _report(self, done: Progressed) -> str:
        self.heads.eval()
        shares = self.measure()
        self.heads.train()
        line = {"chunk": done.chunk, "loss": done.loss, "seconds": done.seconds, "right": shares}
        with (self.plan.out / "training" / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return f"{done.seconds:.0f} s, right so far by depth: " + " ".join(
            f"{share:.0%}" for share in shares
        )


def eagle_config(target: Any) -> LlamaConfig | Qwen2Config:
    """Return the configuration of an EAGLE head of the size of a target's layers."""
    family = Qwen2Config if target.model_type == "qwen2" else LlamaConfig
    heads = target.num_attention_heads
    config = family(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=getattr(target, "rms_norm_eps", 1e-6),
        rope_parameters=dict(target.rope_parameters),
    )
    config.head_dim = getattr(target, "head_dim", None) or target.hidden_size // heads
    return config


@torch.no_grad()
def start_from_last_layer(target: Any, token_ids: torch.Tensor) -> EagleHead:
    """Return an EAGLE head that starts as the target's last layer, as far as their weights fit.

    The head reads and writes states after the target's last norm, which its layer does not know:
    the weights at both ends take the scales of the norms, that of the last one as it is for some
    token ids, [B, N]. `fc` starts by adding a token's embedding to the state before.
    """
    head = EagleHead(eagle_config(target.config), has_fc_bias=True)
    base = target.base_model
    layer: Any = head.layers[0]
    own, last = layer.state_dict(), base.layers[-1].state_dict()
    fitting = {name: x for name, x in last.items() if name in own and x.shape == own[name].shape}
    layer.load_state_dict(fitting, strict=False)
    before = HiddenStates([len(base.layers) - 1])
    with before.record(target):
        base(input_ids=token_ids, use_cache=False)
    before.keep(slice(None))
    size = before.rows(len(base.layers) - 1).square().mean().sqrt()
    written, read = base.norm.weight / size, last["input_layernorm.weight"] / base.norm.weight
    for module in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
        module.weight.mul_(read)
    for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
        module.weight.mul_(written[:, None])
    identity = torch.eye(target.config.hidden_size)
    head.fc.weight.copy_(torch.cat([identity, identity], dim=1))
    head.fc.bias.zero_()
    return head

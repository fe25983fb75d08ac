"""The tiny drafter: some of the target's layers, trained further as a block-causal diffusion LM.

One pass trains both kinds of rows. Clean rows are causal and predict the next token, as the last
prefix row does when drafting. Masked rows are at the positions of a block, attend to the clean
tokens before it and to all of the block, and predict the token after their own (the shift). Blocks
start at random places of an answer and have random lengths, as drafts do.

All layers but one attend to a window only, so that a draft costs nearly the same behind any prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.pairs.tiny.corpus.encoder import Example
from diffuspec.pairs.tiny.corpus.tokenizer import MASK_TOKEN_ID
from diffuspec.pairs.tiny.training.target import pad, target_config

# Found by dropping, one by one, the layer that costs least accuracy on held-out questions.
TARGET_LAYERS = (0, 2, 3, 10, 12, 15)
FULL_LAYER = 3  # attends to the whole prefix; copying over long distances needs it most
WINDOW = 256  # tokens that a row of the other layers attends to, its own included
MIN_BLOCK, MAX_BLOCK = 8, 32
POSITION_DECAY = 0.97  # of the loss: a late token counts only if all before it were right
REVEALED_SHARE = 0.15  # of the batches with some unmasked block tokens, for refinement steps
PROBE_BLOCK = 24
PROBES_PER_EXAMPLE = 10


def drafter_config() -> Qwen2Config:
    config = target_config()
    config.num_hidden_layers = len(TARGET_LAYERS)
    config.layer_types = ["sliding_attention"] * len(TARGET_LAYERS)
    config.layer_types[FULL_LAYER] = "full_attention"
    config.use_sliding_window, config.sliding_window = True, WINDOW
    config.mask_token_id = MASK_TOKEN_ID
    config.diffusion_attention = "block_causal"
    return config


def start_from(target: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """Return a drafter with the target's embeddings, last norm, and some of its layers."""
    model = Qwen2ForCausalLM(drafter_config())
    model.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(target.model.norm.state_dict())
    for layer, source in zip(model.model.layers, TARGET_LAYERS, strict=True):
        layer.load_state_dict(target.model.layers[source].state_dict())
    return model


@dataclass(frozen=True, slots=True)
class Blocks:
    """Masked rows of a batch: [B, M] each, M = blocks x block length."""

    positions: torch.Tensor  # of the row in its sequence
    block_ids: torch.Tensor
    starts: torch.Tensor  # number of clean tokens that the row attends to
    labels: torch.Tensor  # the token after the row's own; -1: none
    offsets: torch.Tensor  # of the row in its block


def place_blocks(
    token_ids: torch.Tensor, is_answer: torch.Tensor, starts: torch.Tensor, length: int
) -> Blocks:
    """Return blocks of one length at starts [B, S]; labels end with the block's first answer."""
    batch, num_tokens = token_ids.shape
    num_blocks = starts.shape[1]
    offsets = torch.arange(length).repeat(num_blocks).expand(batch, -1)
    row_starts = starts.repeat_interleave(length, dim=1)
    positions = row_starts + offsets
    # An answer's id is the number of other tokens before it.
    answer_ids = torch.where(is_answer, (~is_answer).cumsum(-1), -1)
    after = (positions + 1).clamp(max=num_tokens - 1)
    inside = positions + 1 < num_tokens
    same = answer_ids.gather(1, after) == answer_ids.gather(1, row_starts)
    labels = torch.where(inside & same, token_ids.gather(1, after), -1)
    block_ids = torch.arange(num_blocks).repeat_interleave(length).expand(batch, -1)
    return Blocks(positions, block_ids, row_starts, labels, offsets)


def hidden_states(
    model: Qwen2ForCausalLM, token_ids: torch.Tensor, blocks: Blocks, block_ids: torch.Tensor
) -> torch.Tensor:
    """Return hidden states [B, N + M, H] of the clean rows, then of the block rows."""
    batch, num_tokens = token_ids.shape
    num_rows = blocks.positions.shape[1]
    clean = torch.arange(num_tokens)
    visible = torch.zeros(batch, num_tokens + num_rows, num_tokens + num_rows, dtype=torch.bool)
    visible[:, :num_tokens, :num_tokens] = clean[:, None] >= clean
    visible[:, num_tokens:, :num_tokens] = clean < blocks.starts[:, :, None]
    visible[:, num_tokens:, num_tokens:] = blocks.block_ids[:, :, None] == blocks.block_ids[:, None]
    positions = torch.cat([clean.expand(batch, -1), blocks.positions], 1)
    masks = {"full_attention": _scores(visible)}
    if (window := model.config.sliding_window) is not None:
        near = positions[:, :, None] - positions[:, None] < window
        masks["sliding_attention"] = _scores(visible & near)
    hidden: torch.Tensor = model.model(
        input_ids=torch.cat([token_ids, block_ids], 1),
        position_ids=positions,
        attention_mask=masks,
        use_cache=False,
    ).last_hidden_state
    return hidden


def _scores(visible: torch.Tensor) -> torch.Tensor:
    """Return the terms that a mask [B, N, N] adds to attention scores [B, heads, N, N]."""
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)[:, None]


def draft_loss(model: Qwen2ForCausalLM, batch: list[Example]) -> torch.Tensor:
    """Return the cross-entropy of clean rows on answers plus that of masked rows."""
    token_ids, is_answer = pad(batch)
    length = int(torch.randint(MIN_BLOCK, MAX_BLOCK + 1, ()))
    answered = int(is_answer.sum()) // len(batch)
    num_blocks = max(1, round(1.4 * answered / length))
    starts = torch.multinomial(is_answer.float(), num_blocks, replacement=True)
    blocks = place_blocks(token_ids, is_answer, starts, length)
    block_tokens, labels = _mask(token_ids, blocks)
    hidden = hidden_states(model, token_ids, blocks, block_tokens)
    num_tokens = token_ids.shape[1]
    clean_kept = is_answer[:, 1:]
    clean_logits = model.lm_head(hidden[:, : num_tokens - 1][clean_kept]).float()
    clean_loss = cross_entropy(clean_logits, token_ids[:, 1:][clean_kept])
    kept = labels >= 0
    losses = cross_entropy(
        model.lm_head(hidden[:, num_tokens:][kept]).float(), labels[kept], reduction="none"
    )
    weights = POSITION_DECAY ** blocks.offsets[kept]
    return 0.5 * clean_loss + (losses * weights).sum() / weights.sum()


def _mask(token_ids: torch.Tensor, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Return block tokens and labels; in REVEALED_SHARE of the calls some are not masked."""
    masks = torch.full_like(blocks.positions, MASK_TOKEN_ID)
    if torch.rand(()) >= REVEALED_SHARE:
        return masks, blocks.labels
    own = token_ids.gather(1, blocks.positions.clamp(max=token_ids.shape[1] - 1))
    inside = (blocks.positions < token_ids.shape[1]) & (own != 0)
    given = inside & (torch.rand(own.shape) < torch.rand(()))
    label_is_given = torch.cat([given[:, 1:], torch.zeros_like(given[:, :1])], 1)
    last_of_block = torch.cat(
        [blocks.block_ids[:, 1:] != blocks.block_ids[:, :-1], torch.ones_like(given[:, :1])], 1
    )
    labels = torch.where(label_is_given & ~last_of_block, -1, blocks.labels)
    return torch.where(given, own, masks), labels


@torch.inference_mode()
def mean_acceptance(model: Qwen2ForCausalLM, batch: list[Example]) -> float:
    """Return committed tokens per step of argmax drafts at evenly spread places of answers."""
    token_ids, is_answer = pad(batch)
    spread = torch.linspace(0.0, 0.9, PROBES_PER_EXAMPLE)
    places = [torch.nonzero(row).squeeze(1) for row in is_answer]
    starts = torch.stack([place[(spread * len(place)).long()] for place in places])
    blocks = place_blocks(token_ids, is_answer, starts, PROBE_BLOCK)
    masks = torch.full_like(blocks.positions, MASK_TOKEN_ID)
    hidden = hidden_states(model, token_ids, blocks, masks)
    num_tokens = token_ids.shape[1]
    first_rows = (starts - 1)[:, :, None].expand(-1, -1, hidden.shape[-1])
    first = model.lm_head(hidden.gather(1, first_rows)).argmax(-1) == token_ids.gather(1, starts)
    rest = model.lm_head(hidden[:, num_tokens:]).argmax(-1) == blocks.labels  # [B, M]
    rest = rest.unflatten(1, (PROBES_PER_EXAMPLE, PROBE_BLOCK))
    right = torch.cat([first[:, :, None], rest[:, :, :-1]], 2)  # [B, probes, block]
    return float(right.long().cumprod(-1).sum(-1).float().mean()) + 1

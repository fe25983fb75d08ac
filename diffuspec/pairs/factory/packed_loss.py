"""Trains on packed batches: the examples on the device, the next batches made meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._triton import has_triton

from diffuspec.pairs.factory.blocks import by_layer_type, scores, window_of
from diffuspec.pairs.factory.examples import (
    BATCHES_PER_CHUNK,
    PROBABILITY_UNITS,
    Example,
)
from diffuspec.pairs.factory.loss import Head, LossConfig, row_shares
from diffuspec.pairs.factory.packing import (
    MASKED_ROWS,
    TILE,
    Packed,
    PackedShape,
    Texts,
    examples_of_batch,
    pack,
)
from diffuspec.pairs.factory.sight import PACKED, SightMask, attention, dense_mask, narrowed

_BATCHES_AHEAD = 6


def can_pack(model: Any, config: LossConfig, device: torch.device) -> bool:
    """Return whether FlexAttention computes the model's attention on a device.

    Drafts with full attention have a sequence each and are not packed.
    """
    if config.attention == "full":
        return False
    has_sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
    return device.type == "cuda" and has_triton() and not has_sinks


class PackedExamples:
    """Examples on a device, and batches of them."""

    def __init__(self, shape: PackedShape, seed: int, device: torch.device) -> None:
        self.shape = shape
        self._seed, self.device = seed, device
        self._num_examples = 0
        self._ahead: dict[int, Future[Packed]] = {}
        self._pool = ThreadPoolExecutor(1)

    def batches(self, examples: Sequence[Example], chunk: int) -> Iterator[Packed]:
        """Yield the batches of a chunk; the next ones are made by a thread."""
        if len(examples) != self._num_examples:
            self._read(examples)
        first = chunk * BATCHES_PER_CHUNK
        for number in range(first, first + BATCHES_PER_CHUNK):
            for other in range(number, number + _BATCHES_AHEAD):
                if other not in self._ahead:
                    self._ahead[other] = self._pool.submit(self._pack, other)
            yield self._ahead.pop(number).result()

    def _read(self, examples: Sequence[Example]) -> None:
        self._ahead.clear()
        self._num_examples = len(examples)
        self.texts = Texts.of(examples)
        self.token_ids = torch.from_numpy(self.texts.token_ids).to(self.device)
        self._likely = _likely_of(examples, self.texts, self.device)

    def _pack(self, number: int) -> Packed:
        texts, rng = self.texts, np.random.default_rng([self._seed, number])
        chosen = examples_of_batch(texts, self._seed, number, self.shape.num_clean)
        return pack(texts, chosen, self.shape, rng).to(self.device)

    def likely(self, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the target's likeliest ids and their probabilities at places, if known."""
        if self._likely is None:
            return ()
        rows, top_ids, top_probs = self._likely
        found = rows[labels.clamp(min=0)].long()
        return top_ids[found].long(), top_probs[found].float() / PROBABILITY_UNITS


def _likely_of(
    examples: Sequence[Example], texts: Texts, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return for each place its row in the tables of the target's likeliest tokens, and these."""
    likely = [example.likely for example in examples]
    tops = [top for top in likely if top is not None]
    if len(tops) < len(likely):
        return None
    num_top = min(top.token_ids.shape[1] for top in tops)
    counts = np.array([len(top.token_ids) for top in tops])
    firsts = np.repeat(texts.starts[1:] - counts, counts)  # they are of an example's last tokens
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.zeros(len(texts.token_ids), np.int32)
    rows[firsts + offsets] = np.arange(counts.sum())
    tables = (
        rows,
        np.concatenate([top.token_ids[:, :num_top] for top in tops]),
        np.concatenate([top.probabilities[:, :num_top] for top in tops]),
    )
    first, second, third = (torch.from_numpy(table).to(device) for table in tables)
    return first, second, third


def packed_shape(config: LossConfig, tokens_per_batch: int) -> PackedShape:
    """Return the shape of batches of about so many clean rows."""
    num_clean = max(1, round(tokens_per_batch / TILE)) * TILE
    return PackedShape(
        num_clean,
        0 if config.mask_token_id is None else MASKED_ROWS * num_clean,
        config.min_block,
        config.max_block,
        config.clean_weight,
        config.position_decay,
        config.revealed_share,
        config.block_size,
    )


class PackedLoss:
    """The loss of packed batches; `draft_loss` without padding."""

    def __init__(
        self, model: Any, examples: PackedExamples, config: LossConfig, head: Head
    ) -> None:
        self._model, self.examples = model, examples
        self._config, self._head = config, head
        self.is_flex = examples.device.type == "cuda"  # else masks are dense
        self._masks: list[SightMask] = []  # made with the first batch

    def __call__(self, batch: Packed) -> torch.Tensor:
        hidden = self.states(batch)[batch.learning]
        labels = self.examples.token_ids[batch.labels.clamp(min=0)].long()
        shares = row_shares(
            self._head,
            labels,
            batch.weights,
            self.examples.likely(batch.labels),
            self._config.likely_share,
        )
        return self._head.loss(hidden, *shares)

    def states(self, batch: Packed) -> torch.Tensor:
        """Return the hidden states of all rows, [R, H]."""
        model, decoder = self._model, self._model.get_decoder()
        token_ids = self.examples.token_ids[batch.places.clamp(min=0)].long()
        if (mask := self._config.mask_token_id) is not None:
            token_ids = torch.where(batch.places >= 0, token_ids, mask)
        embedded = model.get_input_embeddings()(token_ids[None])
        if torch.is_autocast_enabled(embedded.device.type):  # further states have the same type
            embedded = embedded.bfloat16()
        with attention(model, PACKED) if self.is_flex else nullcontext():
            hidden: torch.Tensor = decoder(
                # with a gradient, so that the first layer is compiled like the others
                inputs_embeds=embedded.requires_grad_(),
                position_ids=batch.positions[None].long(),
                attention_mask=self._attention_masks(batch),
                use_cache=False,
            ).last_hidden_state
        return hidden[0]

    def _attention_masks(self, batch: Packed) -> Any:
        """Return the mask of all layers, or one for each type of layer if types differ."""
        window, sights = window_of(self._model.config), [batch.sight]
        if window is not None:
            sights.append(narrowed(batch.sight, batch.positions, window))
        masks = [self._mask(sight, place) for place, sight in enumerate(sights)]
        return masks[0] if window is None else by_layer_type(*masks)

    def _mask(self, sight: torch.Tensor, place: int) -> torch.Tensor | BlockMask:
        """place: number of the type of layer, each of which has a mask of its own."""
        if not self.is_flex:
            return scores(dense_mask(sight)[None])
        if place == len(self._masks):
            self._masks.append(SightMask(sight.shape[1], sight.device))
        return self._masks[place].set(sight)

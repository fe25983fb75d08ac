"""A preallocated key/value cache with one slot per sequence.

A slot remembers the tokens of its rows, so that a prefix shared with a new request need not be
computed again. A rollback sets a length; committing a branch of a draft tree moves its rows to the
front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from diffuspec.core.errors import WorkerError
from diffuspec.core.types import TokenIds, num_shared_tokens
from diffuspec.models.kernels import huge_pages
from diffuspec.models.kernels.decoder import SlotMemory
from diffuspec.models.kernels.operations import KEY_BLOCK

# Above this number of uncached tokens, an extra forward or a copy of cached rows is worthwhile.
MANY_TOKENS = 32


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The dimensions of a model's keys and values, which are the same in every layer."""

    num_layers: int
    num_kv_heads: int  # heads in this process: a tensor-parallel rank holds a share of them
    head_dim: int

    def num_bytes(self, num_slots: int, max_len: int, dtype: torch.dtype) -> int:
        per_token = 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize
        return per_token * num_slots * max_len


@dataclass(slots=True)
class Slot:
    """One sequence's rows. Row i holds token_ids[i] at position i; rows past length are scratch."""

    index: int
    token_ids: TokenIds  # [max_len]
    length: int = 0
    request_id: str | None = None  # None: free, but its rows may still serve another request
    last_step: int = -1
    salt: str | None = None  # salt of the request that wrote the rows

    def common_prefix(self, prefix: TokenIds, salt: str | None) -> int:
        """Return the number of leading prefix tokens that are cached in this slot for a salt."""
        return num_shared_tokens(self.token_ids[: self.length], prefix) if salt == self.salt else 0


class KVCache:
    """Rows of keys and values for every layer, [slots, kv_heads, max_len, head_dim] each.

    Keys may be transposed, in blocks of KEY_BLOCK rows: [slots, kv_heads, blocks, head_dim,
    KEY_BLOCK]. Not thread-safe: its owner calls it from one thread.
    """

    def __init__(
        self,
        shape: CacheShape,
        num_slots: int,
        max_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        transposes_keys: bool = False,
    ) -> None:
        self.shape = shape
        self.max_len = max_len
        self.transposes_keys = transposes_keys
        num_rows = _whole_blocks(max_len) if transposes_keys else max_len
        size = (shape.num_layers, 2, num_slots, shape.num_kv_heads, num_rows, shape.head_dim)
        # Zeros: the values of masked rows are multiplied by 0, and 0 * NaN would be NaN.
        if torch.device(device).type == "cpu":
            self._store = huge_pages.zeros(size, dtype)
        else:
            self._store = torch.zeros(size, dtype=dtype, device=device)
        self._tables = [self._store[:, :, i].flatten(0, 1) for i in range(num_slots)]  # views
        self._layers = [table.unbind(0) for table in self._tables]
        self._memory = [self._memory_of(i) for i in range(num_slots)]
        self._slots = [Slot(i, np.zeros(max_len, np.int32)) for i in range(num_slots)]
        self._by_request: dict[str, Slot] = {}
        self._step = 0

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def dtype(self) -> torch.dtype:
        return self._store.dtype

    @property
    def device(self) -> torch.device:
        return self._store.device

    def begin_step(self) -> None:
        """Begin a step: slots acquired from now on are not reassigned before the next step."""
        self._step += 1

    def acquire(
        self,
        request_id: str,
        prefix: TokenIds,
        max_cached: int | None = None,
        salt: str | None = None,
    ) -> tuple[int, int]:
        """Return the request's slot and the number of leading prefix tokens cached in it.

        At most max_cached tokens count as cached: by default all but the last, whose row is needed
        for its logits. The longest prefix cached in any slot with the same salt is reused. A
        request without a slot takes over the slot that holds this prefix, if the slot is free and
        holds little else; otherwise it gets the least recently used slot, preferably a free one,
        and the rows are copied. For a request with a slot the rows are copied if that saves much
        computation. Raises WorkerError if every slot was acquired in this step, or the prefix is
        longer than a slot.
        """
        if len(prefix) > self.max_len:
            raise WorkerError(f"a prefix of {len(prefix)} tokens exceeds {self.max_len} cache rows")
        slot = self._by_request.get(request_id)
        if slot is None:
            slot = self._assign(request_id, prefix, salt)
        elif len(prefix) - slot.length > MANY_TOKENS:
            self._copy_longest(slot, prefix, salt)
        slot.last_step = self._step
        limit = len(prefix) - 1 if max_cached is None else max_cached
        slot.length = min(slot.common_prefix(prefix, salt), limit)
        slot.salt = salt
        return slot.index, slot.length

    def commit(
        self,
        slot_index: int,
        token_ids: Sequence[int] | TokenIds,
        num_in_place: int,
        moved_rows: Sequence[int] = (),
    ) -> None:
        """Keep rows that the last forward wrote after the slot's length.

        Rows are counted from that length. The first num_in_place stay where they are; moved_rows
        (ascending) are moved after them. token_ids are the tokens of both, in that order.
        """
        slot = self._slots[slot_index]
        start, end = slot.length, slot.length + num_in_place + len(moved_rows)
        moved = list(moved_rows)
        while moved and moved[0] == num_in_place:  # in a chain these rows are already in place
            num_in_place += 1
            del moved[0]
        if moved:
            self._move(slot_index, [start + row for row in moved], start + num_in_place)
        slot.token_ids[start:end] = token_ids
        slot.length = end

    def truncate(self, slot_index: int, length: int) -> None:
        """Shorten a slot to at most `length` rows."""
        slot = self._slots[slot_index]
        slot.length = min(slot.length, length)

    def release(self, request_id: str) -> None:
        """Free a request's slot; its rows can be reused until another request takes it."""
        slot = self._by_request.pop(request_id, None)
        if slot is not None:
            slot.request_id = None

    def clear(self, request_id: str) -> None:
        """Free a request's slot and zero its rows, which may hold NaNs."""
        slot = self._by_request.get(request_id)
        if slot is not None:
            slot.length = 0
            self._store[:, :, slot.index].zero_()
            self.release(request_id)

    def tokens(self, slot_index: int) -> TokenIds:
        """Return the tokens of a slot's rows."""
        slot = self._slots[slot_index]
        return slot.token_ids[: slot.length]

    def layers(self, slot_index: int) -> tuple[torch.Tensor, ...]:
        """Return views of a slot: keys of layer 0, values of layer 0, keys of layer 1, ...

        Each is [kv_heads, max_len, head_dim] and writable. Views of transposed keys have their
        elements in another order, and rows for whole blocks.
        """
        return self._layers[slot_index]

    def write(self, slot_index: int, start: int, rows: Sequence[torch.Tensor]) -> None:
        """Write `rows` into a slot from row `start` on, [kv_heads, n, head_dim] each."""
        end, layers = start + rows[0].shape[1], self._layers[slot_index]
        if self.transposes_keys:
            places = torch.arange(start, end)
            for blocks, new in zip(self._key_blocks(slot_index), rows[::2], strict=True):
                blocks[:, places // KEY_BLOCK, :, places % KEY_BLOCK] = new.transpose(0, 1)
            layers, rows = layers[1::2], rows[1::2]
        for layer, new in zip(layers, rows, strict=True):
            layer[:, start:end] = new

    def rows(self, slot_index: int, end: int) -> torch.Tensor:
        """Return a copy of a slot's rows before `end`, [2 * layers, kv_heads, end, head_dim].

        The order is keys of layer 0, values of layer 0, keys of layer 1, ...; none are transposed.
        """
        rows = self._tables[slot_index][:, :, :end].clone()
        if self.transposes_keys:
            keys = self._key_blocks(slot_index).transpose(3, 4).flatten(2, 3)
            rows[::2] = keys[:, :, :end]
        return rows

    def memory(self, slot_index: int) -> SlotMemory:
        """Return the addresses of a slot's keys and values."""
        return self._memory[slot_index]

    def all_slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a layer's keys and values, [slots, kv_heads, max_len, head_dim]."""
        keys, values = self._store[layer]
        return keys, values

    def _memory_of(self, slot_index: int) -> SlotMemory:
        by_layer, by_kind, by_slot, by_head, _, _ = self._store.stride()
        size = self._store.itemsize
        keys = self._store.data_ptr() + slot_index * by_slot * size
        values = keys + by_kind * size
        return SlotMemory(keys, values, by_layer * size, by_head, self.transposes_keys)

    def _key_blocks(self, slot_index: int) -> torch.Tensor:
        """Return a view of a slot's transposed keys, [layers, kv_heads, blocks, dim, KEY_BLOCK]."""
        keys = self._tables[slot_index][::2]
        return keys.view(*keys.shape[:2], -1, self.shape.head_dim, KEY_BLOCK)

    def _move(self, slot_index: int, rows: Sequence[int], first: int) -> None:
        """Copy rows (ascending) to the positions from `first` on."""
        source = torch.tensor(rows, device=self.device)
        end = first + len(rows)
        table = self._tables[slot_index]
        if not self.transposes_keys:
            table[:, :, first:end] = table.index_select(2, source)
            return
        table[1::2, :, first:end] = table[1::2].index_select(2, source)
        keys = self._key_blocks(slot_index)
        for place, row in enumerate(rows, start=first):  # in this order none is lost
            moved = keys[:, :, row // KEY_BLOCK, :, row % KEY_BLOCK]
            keys[:, :, place // KEY_BLOCK, :, place % KEY_BLOCK] = moved

    def _assign(self, request_id: str, prefix: TokenIds, salt: str | None) -> Slot:
        best, num_shared = self._longest(prefix, salt)
        idle = [slot for slot in self._slots if slot.last_step != self._step]
        free = [slot for slot in idle if slot.request_id is None]
        if not idle:
            raise WorkerError(f"all {self.num_slots} cache slots are in use by this step")
        if best in free and 2 * num_shared > best.length:
            slot = best
        else:
            slot = min(free or idle, key=lambda slot: slot.last_step)
            self._copy(best, slot, num_shared)
        if slot.request_id is not None:
            del self._by_request[slot.request_id]
        slot.request_id = request_id
        self._by_request[request_id] = slot
        return slot

    def _longest(self, prefix: TokenIds, salt: str | None) -> tuple[Slot, int]:
        """Return the slot that has most of a prefix cached, and the number of cached tokens."""
        shared = [slot.common_prefix(prefix, salt) for slot in self._slots]
        best = max(self._slots, key=lambda slot: shared[slot.index])
        return best, shared[best.index]

    def _copy_longest(self, slot: Slot, prefix: TokenIds, salt: str | None) -> None:
        best, num_shared = self._longest(prefix, salt)
        if num_shared - slot.common_prefix(prefix, salt) > MANY_TOKENS:
            self._copy(best, slot, num_shared)

    def _copy(self, source: Slot, target: Slot, length: int) -> None:
        if source is not target:
            num_rows = _whole_blocks(length) if self.transposes_keys else length
            rows = self._store[:, :, source.index, :, :num_rows]
            self._store[:, :, target.index, :, :num_rows] = rows
            target.token_ids[:length] = source.token_ids[:length]
            target.salt = source.salt
        target.length = length


def _whole_blocks(num_rows: int) -> int:
    """Return the number of rows in as many blocks of transposed keys as hold these rows."""
    return -(-num_rows // KEY_BLOCK) * KEY_BLOCK

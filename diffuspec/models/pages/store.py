"""The memory of keys and values, in pages of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.models.kernels import huge_pages
from diffuspec.models.kernels.decoder import PageMemory
from diffuspec.models.kernels.operations import KEY_BLOCK

Pages = NDArray[np.int32]  # row i of a sequence is row i % PAGE_SIZE of page pages[i // PAGE_SIZE]

_USUAL_TOKENS = 2048  # tokens of a request for which a cache has room by default


def default_num_pages(max_sequences: int, max_len: int, num_scratch_rows: int) -> int:
    """Return the size of a cache for requests of 2,048 tokens, and for one of max_len tokens.

    max_sequences of them run at a time; scratch rows of each follow its tokens.
    """
    usual = num_pages_of(min(max_len, _USUAL_TOKENS) + num_scratch_rows)
    return max(max_sequences * usual, num_pages_of(max_len + num_scratch_rows))


def describe_size(num_pages: int) -> str:
    """Return how many tokens and requests of 2,000 tokens a cache has room for."""
    num_requests = num_pages // num_pages_of(2000)
    return f"{num_pages * PAGE_SIZE:,} tokens, {num_requests:,} requests of 2,000"


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The dimensions of a model's keys and values, which are the same in every layer."""

    num_layers: int
    num_kv_heads: int  # heads in this process: a tensor-parallel rank holds a share of them
    head_dim: int

    def num_bytes(self, num_rows: int, dtype: torch.dtype) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize * num_rows


class _Places(NamedTuple):
    """Rows of some pages."""

    pages: Tensor  # [n]
    rows: Tensor  # [n], within the page


class PageStore:
    """Keys and values, [layers, 2, pages, kv_heads, PAGE_SIZE, head_dim].

    Keys may be transposed, in blocks of KEY_BLOCK rows: [..., blocks, head_dim, KEY_BLOCK]. Not
    thread-safe: its owner calls it from one thread.
    """

    def __init__(
        self,
        shape: CacheShape,
        num_pages: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        transposes_keys: bool = False,
    ) -> None:
        self.shape, self.num_pages = shape, num_pages
        self.transposes_keys = transposes_keys
        size = shape.num_layers, 2, num_pages, shape.num_kv_heads, PAGE_SIZE, shape.head_dim
        # Zeros: the values of masked rows are multiplied by 0, and 0 * NaN would be NaN.
        if torch.device(device).type == "cpu":
            self._store = huge_pages.zeros(size, dtype)
        else:
            self._store = torch.zeros(size, dtype=dtype, device=device)
        blocks = *size[:4], PAGE_SIZE // KEY_BLOCK, shape.head_dim, KEY_BLOCK
        self._key_blocks = self._store.view(blocks)[:, 0] if transposes_keys else None
        self._layers = [tuple(layer.unbind(0)) for layer in self._store.unbind(0)]
        self.memory = self._memory()

    @property
    def dtype(self) -> torch.dtype:
        return self._store.dtype

    @property
    def device(self) -> torch.device:
        return self._store.device

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return views of a layer's keys and values, [pages, kv_heads, PAGE_SIZE, head_dim]."""
        keys, values = self._layers[layer]
        return keys, values

    def write(self, pages: Pages, start: int, rows: Sequence[Tensor]) -> None:
        """Write rows of a sequence from row `start` on, [kv_heads, n, head_dim] each.

        They are keys of layer 0, values of layer 0, keys of layer 1, ...
        """
        places = self._places(pages, range(start, start + rows[0].shape[1]))
        kinds = self.shape.num_layers, 2
        both = torch.stack(list(rows)).view(*kinds, *rows[0].shape).permute(3, 0, 1, 2, 4)
        self._put(places, both.to(self._store))

    def rows(self, pages: Pages, end: int) -> Tensor:
        """Return a copy of a sequence's rows before `end`, [2 * layers, kv_heads, end, head_dim].

        Their order is that of `write`.
        """
        rows = self._get(self._places(pages, range(end)))  # [end, layers, 2, kv_heads, head_dim]
        return rows.permute(1, 2, 3, 0, 4).flatten(0, 1)

    def move(self, pages: Pages, rows: Sequence[int], first: int) -> None:
        """Copy rows of a sequence to the rows from `first` on."""
        moved = self._get(self._places(pages, rows))
        self._put(self._places(pages, range(first, first + len(rows))), moved)

    def copy_page(self, source: int, target: int) -> None:
        self._store[:, :, target] = self._store[:, :, source]

    def zero_page(self, page: int) -> None:
        self._store[:, :, page] = 0

    def _places(self, pages: Pages, rows: Iterable[int]) -> _Places:
        numbers = np.fromiter(rows, np.int64)
        of_rows = np.stack([pages[numbers // PAGE_SIZE], numbers % PAGE_SIZE])
        return _Places(*torch.from_numpy(of_rows.astype(np.int64)).to(self.device))

    def _get(self, places: _Places) -> Tensor:
        """Return rows, [n, layers, 2, kv_heads, head_dim]."""
        pages, rows = places
        found = self._store[:, :, pages, :, rows]
        if self._key_blocks is not None:
            blocks, lanes = rows // KEY_BLOCK, rows % KEY_BLOCK
            found[:, :, 0] = self._key_blocks[:, pages, :, blocks, :, lanes]
        return found

    def _put(self, places: _Places, numbers: Tensor) -> None:
        pages, rows = places
        if self._key_blocks is None:
            self._store[:, :, pages, :, rows] = numbers
            return
        self._store[:, 1][:, pages, :, rows] = numbers[:, :, 1]
        blocks, lanes = rows // KEY_BLOCK, rows % KEY_BLOCK
        self._key_blocks[:, pages, :, blocks, :, lanes] = numbers[:, :, 0]

    def _memory(self) -> PageMemory:
        by_layer, by_kind, by_page, by_head, _, _ = self._store.stride()
        size, keys = self._store.itemsize, self._store.data_ptr()
        values = keys + by_kind * size
        return PageMemory(keys, values, by_layer * size, by_page, by_head, self.transposes_keys)

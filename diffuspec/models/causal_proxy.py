"""A small causal LM as the causal proxy of CPS, instead of the n-gram model.

The paper allows both. A state is the path after the prefix. One forward scores all states of a
column over the shared, cached prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from diffuspec.core.devices import Device
from diffuspec.core.errors import VocabularyError
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import TokenIds
from diffuspec.models.attention.segment import Segment
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.loading.load import load_model
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner
from diffuspec.text.tokenizer import check_tokenizer, load_tokenizer

_MAX_PREFILL_ROWS = 512
_REQUEST_ID = "proxy"  # the cache holds one prefix, the latest


@dataclass(frozen=True, slots=True)
class _State:
    prefix: tuple[int, ...]
    path: tuple[int, ...]
    salt: str | None


class CausalLmProxy:
    """`CausalProxy` over a transformers causal LM with the target's token ids.

    Scores are exact: the model's ln P(token | prefix, path). This takes a forward per column of the
    lattice, so the model must be far smaller than the drafter.
    """

    def __init__(self, runner: ModelRunner, max_context_tokens: int, vocab_size: int) -> None:
        self.max_context_tokens = max_context_tokens
        self._runner = runner
        self._vocab_size = vocab_size

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        vocab_size: int,
        beam_width: int,
        device: Device = "auto",
    ) -> Self:
        """Load a model directory. Raises ModelLoadError, VocabularyError.

        At most beam_width states, each as long as the longest draft, can be scored at a time.
        """
        checkpoint = inspect_checkpoint(path)
        checkpoint.check_autoregressive("the causal proxy")
        checkpoint.check_room_for_drafts()
        num_path_rows = beam_width * MAX_DRAFT_TOKENS
        loaded = load_model(path, device=device, max_sequences=1, num_scratch_rows=num_path_rows)
        known = check_tokenizer(path, load_tokenizer(path), loaded.runner.vocab_size)
        if known != vocab_size:
            raise VocabularyError(
                f"{path} knows {known} token ids, the target {vocab_size}: a causal proxy must "
                "share the target's tokenizer"
            )
        return cls(loaded.runner, loaded.max_positions - MAX_DRAFT_TOKENS, vocab_size)

    def begin(self, context: Sequence[int], salt: str | None = None) -> _State:
        return _State(tuple(context), (), salt)

    @torch.inference_mode()
    def expand(
        self, states: Sequence[_State], candidates: Sequence[int]
    ) -> tuple[list[list[float]], list[list[_State]]]:
        """Score every candidate after every state; see `CausalProxy.expand`."""
        segment = self._segment(states)
        logits = self._runner.forward([segment])[:, : self._vocab_size]
        scores: list[list[float]] = logits.log_softmax(dim=-1)[:, list(candidates)].tolist()
        after = [
            [_State(state.prefix, (*state.path, token_id), state.salt) for token_id in candidates]
            for state in states
        ]
        return scores, after

    def _segment(self, states: Sequence[_State]) -> Segment:
        """Lay out the last prefix token and every state's path. Paths do not see each other."""
        prefix: TokenIds = np.array(states[0].prefix, np.int32)
        table = self._prefill(prefix, states[0].salt)
        paths = [state.path for state in states]
        lengths = [len(path) for path in paths]
        num_rows = 1 + sum(lengths)
        visible = np.zeros((num_rows, num_rows), np.bool_)
        visible[:, 0] = True
        logit_rows, row = [], 1
        for length in lengths:
            visible[row : row + length, row : row + length] = np.tri(length, dtype=np.bool_)
            row += length
            logit_rows.append(row - 1 if length else 0)
        positions = [np.arange(len(prefix), len(prefix) + length) for length in lengths]
        return Segment(
            table,
            table.length,
            np.concatenate([prefix[-1:], *(np.array(path, np.int32) for path in paths)]),
            np.concatenate([np.array([len(prefix) - 1]), *positions]),
            visible,
            logit_rows,
        )

    def _prefill(self, prefix: TokenIds, salt: str | None) -> PageTable:
        """Cache the prefix without its last token; return its table."""
        cache = self._runner.cache
        cache.begin_step()
        table = cache.acquire(_REQUEST_ID, prefix, salt=salt)
        end = len(prefix) - 1
        while (start := table.length) < end:
            chunk = prefix[start : min(start + _MAX_PREFILL_ROWS, end)]
            self._runner.feed(table, chunk, start)
        return table

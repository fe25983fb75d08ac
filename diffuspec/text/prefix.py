"""The prefix of a request: its prompt and committed tokens, and what ends them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason, TokenIds
from diffuspec.text.detokenizer import Detokenizer


class Prefix:
    """Grows by the tokens of verdicts, up to the first one that ends the request."""

    def __init__(
        self,
        prompt: TokenIds,
        committed: TokenIds,
        sampling: SamplingParams,
        eos_token_ids: tuple[int, ...],
        detokenizer: Detokenizer | None,
    ) -> None:
        """Raise InvalidRequestError if the committed tokens already end the request."""
        self.num_prompt_tokens = self.num_tokens = len(prompt)
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None  # the stop string or stop token that ended it
        self._max_tokens = sampling.max_tokens
        self._detokenizer = detokenizer
        self._eos_ids = frozenset(() if sampling.ignore_eos else eos_token_ids)
        self._stop_ids = self._eos_ids.union(sampling.stop_token_ids)
        self._includes_stop = sampling.include_stop_str_in_output
        self._tokens = np.zeros(len(prompt) + sampling.max_tokens, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._read_only = self._tokens.view()  # workers hold views of it
        self._read_only.flags.writeable = False
        self.append(committed.tolist())
        if self.finish_reason is not None:
            raise InvalidRequestError("the committed tokens end the request already")

    @property
    def token_ids(self) -> TokenIds:
        """All tokens so far, read-only."""
        return self._read_only[: self.num_tokens]

    @property
    def num_left(self) -> int:
        """Tokens that may still be committed."""
        return self.num_prompt_tokens + self._max_tokens - self.num_tokens

    def is_ended_by(self, token_ids: Collection[int]) -> bool:
        """Return whether one of these tokens would end the request."""
        return not self._stop_ids.isdisjoint(token_ids)

    def append(self, token_ids: Sequence[int]) -> list[str]:
        """Add tokens up to the first that ends the request; return the text each one released."""
        detokenizer, num_left = self._detokenizer, self.num_left
        pieces: list[str] = []
        for token_id in token_ids[:num_left]:
            is_last, piece = token_id in self._stop_ids, ""
            if detokenizer is not None and (self._includes_stop or not is_last):
                piece = detokenizer.push(token_id)
            pieces.append(piece)
            if detokenizer is not None and detokenizer.is_stopped:
                self._stop(detokenizer.stop_string)
                break
            if is_last:
                self._stop(None if token_id in self._eos_ids else token_id)
                break
        if self.finish_reason is None and len(pieces) == num_left:
            self.finish_reason = FinishReason.LENGTH
        if self.finish_reason is not None and detokenizer is not None:
            pieces[-1] += detokenizer.finish()
        start, self.num_tokens = self.num_tokens, self.num_tokens + len(pieces)
        self._tokens[start : self.num_tokens] = token_ids[: len(pieces)]
        return pieces

    def _stop(self, reason: str | int | None) -> None:
        self.finish_reason, self.stop_reason = FinishReason.STOP, reason

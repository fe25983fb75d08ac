"""The text of committed tokens: characters and stop strings may span tokens and steps.

Text is released once it cannot become part of a stop string, or immediately if answers include
their stop string. The first complete stop string ends the text, however it was split into tokens;
one that is complete within the first `min_tokens` tokens is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_MAX_UNDECODED = 16  # tokens without a complete character: more than any character needs
_MAX_BEGUN = 3  # tokens of an incomplete character: one for each byte except the last


class Detokenizer:
    """The text of one answer, token by token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        includes_stop: bool = False,
        skips_special: bool = True,
        after: int | None = None,
    ) -> None:
        """includes_stop: the text ends after the stop string, not before it.

        skips_special: special tokens have no text.

        after: the last token of the prompt. Some tokenizers drop a space at the beginning of a
        text; since the answer follows the prompt, it keeps the space.
        """
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._stream = DecodeStream(self._whole(after), skip_special_tokens=skips_special)
        self._stop = stop
        self._num_unchecked = min_tokens  # number of next tokens that cannot complete a stop string
        self._includes_stop = includes_stop
        self._end = ""  # end of the text so far that may begin a stop string
        self._undecoded: list[int] = []  # ids of an incomplete character
        added = tokenizer.get_added_tokens_decoder().items()
        special_ids = (token_id for token_id, token in added if token.special)
        self._skipped_ids = frozenset(special_ids if skips_special else ())
        self.stop_string: str | None = None  # the stop string that ended the text

    @property
    def is_stopped(self) -> bool:
        return self.stop_string is not None

    def push(self, token_id: int) -> str:
        """Return the text that one more token releases, often "". Sets stop_string."""
        self._num_unchecked -= 1
        return self._decode(token_id)

    def _decode(self, token_id: int) -> str:
        if token_id in self._skipped_ids:
            return ""
        piece: str | None = self._stream.step(self._tokenizer, token_id)
        if piece is None:
            self._undecoded.append(token_id)
            return self._give_up() if len(self._undecoded) >= _MAX_UNDECODED else ""
        self._undecoded.clear()
        return self._release(piece)

    def finish(self) -> str:
        """Return the text held back so far, at the end of the tokens."""
        if self.is_stopped:
            return ""
        rest = self._text(self._undecoded) if self._undecoded else ""
        released = self._release(rest)
        held, self._end = self._end, ""
        return released if self._includes_stop else released + held

    def _give_up(self) -> str:
        """Release invalid bytes before a possible last character, to decode them only once."""
        ids = self._undecoded
        cut = next(n for n in range(len(ids) - _MAX_BEGUN, 0, -1) if self._may_cut(ids, n))
        self._stream, self._undecoded = DecodeStream(skip_special_tokens=self._skips_special), []
        released = self._release(self._text(ids[:cut]))
        for token_id in ids[cut:]:
            released += "" if self.is_stopped else self._decode(token_id)
        return released

    def _may_cut(self, ids: list[int], cut: int) -> bool:
        """Return whether splitting there leaves the text unchanged."""
        text = self._text
        return cut == 1 or text(ids[:cut]) + text(ids[cut:]) == text(ids)

    def _whole(self, token_id: int | None) -> list[int]:
        """Return [token_id], or [] if there is none or it is only a part of a character."""
        if token_id is None or token_id < 0 or "\ufffd" in self._text([token_id]):
            return []
        return [token_id]

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)
        return text

    def _release(self, piece: str) -> str:
        if not self._stop:
            return piece
        text, num_old = self._end + piece, len(self._end)
        found = [
            (at + len(stop), at, stop)
            for stop in self._stop  # stop strings completed by the piece
            if (at := text.find(stop, max(num_old + 1 - len(stop), 0))) >= 0
        ]
        num_released = num_old if self._includes_stop else 0
        if found and self._num_unchecked < 0:
            end, start, self.stop_string = min(found)
            self._end = ""
            return text[num_released : end if self._includes_stop else start]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._end = text[len(text) - keep :]
        return text[num_released:] if self._includes_stop else text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of the text with which the stop string begins.

    A suffix that equals the stop string does not count.
    """
    start = text.find(stop[0], max(len(text) + 1 - len(stop), 0))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) - start if start >= 0 else 0


def backend(tokenizer: Any) -> Tokenizer:
    """Return the `tokenizers` object inside a transformers fast tokenizer."""
    inner: Tokenizer = tokenizer.backend_tokenizer
    return inner

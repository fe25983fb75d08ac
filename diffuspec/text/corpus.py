"""Reads text, conversations and token ids from files, as sequences of token ids.

A text file is split at line ends into pieces of about PIECE_CHARACTERS; each line of a .jsonl file
is one piece. An n-gram model treats each piece as one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from diffuspec.core.errors import ConfigError

PIECE_CHARACTERS = 1 << 16

_EXPECTED = (
    "expected a list of token ids, or an object with token_ids, answer, text or messages"
    " (a list of {role, content})"
)


class CorpusReader:
    """Reads files as sequences of token ids, with the tokenizer of a model directory."""

    def __init__(self, files: Sequence[Path], tokenizer_dir: Path) -> None:
        """Take the files to read. Raises ConfigError if one of them does not exist."""
        for file in files:
            if not file.is_file():
                raise ConfigError(f"{file} is not a file")
        self.num_tokens = 0  # tokens read so far
        self._files = files
        self._tokenizer_dir = tokenizer_dir
        self._num_bytes = sum(file.stat().st_size for file in files)

    def read(
        self, on_progress: Callable[[float], None] = lambda _: None
    ) -> Iterator[Sequence[int]]:
        """Yield the pieces; call on_progress with the share of bytes read.

        Raises ConfigError and ModelLoadError, naming file and line.
        """
        num_read = 0
        for file in self._files:
            pieces = self._lines if file.suffix == ".jsonl" else self._pieces
            for token_ids, num_bytes in pieces(file):
                yield token_ids
                self.num_tokens += len(token_ids)
                num_read += num_bytes
                on_progress(num_read / max(1, self._num_bytes))

    def _pieces(self, file: Path) -> Iterator[tuple[Sequence[int], int]]:
        """Yield the pieces of a text file with their sizes in bytes."""
        lines: list[str] = []
        num_characters = num_bytes = 0
        for _, line, size in _text_lines(file):
            lines.append(line)
            num_characters += len(line)
            num_bytes += size
            if num_characters >= PIECE_CHARACTERS:
                yield self._encode("".join(lines)), num_bytes
                lines.clear()
                num_characters = num_bytes = 0
        if lines:
            yield self._encode("".join(lines)), num_bytes

    def _lines(self, file: Path) -> Iterator[tuple[Sequence[int], int]]:
        """Yield the lines of a .jsonl file with their sizes in bytes."""
        for number, line, size in _text_lines(file):
            if not line.strip():
                continue
            try:
                yield self._parse(json.loads(line)), size
            except json.JSONDecodeError as error:
                raise ConfigError(f"{file}, line {number}: not JSON") from error
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{file}, line {number}: {error}") from error

    def _parse(self, data: Any) -> Sequence[int]:
        if isinstance(data, list):
            return self._known(data)
        if isinstance(data, dict):
            for name in ("token_ids", "answer"):  # answers of `drafter answers` have a prompt, too
                if name in data:
                    return self._known(data[name])
            if isinstance(data.get("text"), str):
                return self._encode(data["text"])
            if isinstance(data.get("messages"), list):
                return self._encode(self._render(data["messages"]))
        raise ValueError(_EXPECTED)

    def _render(self, messages: list[Any]) -> str:
        try:
            rendered: str = self._tokenizer.apply_chat_template(messages, tokenize=False)
        except Exception as error:  # a template may raise anything
            raise ValueError(f"the chat template refused the messages: {error}") from error
        return rendered

    def _known(self, value: Any) -> list[int]:
        """Return token ids. Raises ValueError if the tokenizer lacks one of them."""
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise ValueError("token ids must be a list of integers")
        if value and not 0 <= min(value) <= max(value) < self._num_ids:
            unknown = next(token_id for token_id in value if not 0 <= token_id < self._num_ids)
            raise ValueError(
                f"token id {unknown} is not below {self._num_ids}, the number of ids that"
                f" {self._tokenizer_dir} knows; --target names the model that they are of"
            )
        return value

    def _encode(self, text: str) -> Sequence[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _tokenizer(self) -> Any:
        from diffuspec.text.tokenizer import load_tokenizer

        return load_tokenizer(self._tokenizer_dir)

    @cached_property
    def _backend(self) -> Any:
        from diffuspec.text.detokenizer import backend

        return backend(self._tokenizer)

    @cached_property
    def _num_ids(self) -> int:
        return int(max(self._tokenizer.get_vocab().values())) + 1


def _text_lines(file: Path) -> Iterator[tuple[int, str, int]]:
    """Yield line number, text and size in bytes. Raises ConfigError."""
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                yield number, raw.decode("utf-8"), len(raw)
            except UnicodeDecodeError as error:
                raise ConfigError(f"{file}, line {number}: not UTF-8 text") from error

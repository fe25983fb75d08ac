"""Drafts for llama-cpp-python: `Llama(model_path, draft_model=RemoteDrafts(TOKENIZER_JSON))`.

llama-cpp-python decodes one sequence at a time. After each step it calls its draft model with all
tokens so far, and keeps the drafted tokens that the target itself chooses.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffuspec_client.client import CONNECT_SECONDS, MAX_MODEL_LEN, DraftClient, Row
from diffuspec_client.in_process import InProcess
from diffuspec_client.problems import Problems
from diffuspec_client.settings import Settings
from diffuspec_client.tracking import Tracker
from diffuspec_client.vocabulary import Vocabulary

if TYPE_CHECKING:
    _DraftModel = object
else:
    try:
        from llama_cpp.llama_speculative import LlamaDraftModel as _DraftModel
    except ImportError:  # a class of the same form works too: nothing checks its base class
        _DraftModel = object

logger = logging.getLogger(__name__)


def read_vocabulary(tokenizer: Path | str) -> dict[str, int]:
    """Return the ids by token of a tokenizer.json, which a GGUF file has only in altered form.

    Raises OSError, and ValueError for any other kind of file.
    """
    try:
        found = json.loads(Path(tokenizer).read_text(encoding="utf-8"))
        vocabulary = found["model"]["vocab"]
        if isinstance(vocabulary, list):  # unigram models list tokens with scores
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        added = {one["content"]: int(one["id"]) for one in found.get("added_tokens", [])}
        return {**vocabulary, **added}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{tokenizer} must be a tokenizer.json of the target: {error!r}") from None


class RemoteDrafts(_DraftModel):
    """A `LlamaDraftModel` that uses a draft server. Serves a single `Llama`."""

    def __init__(
        self,
        tokenizer: Path | str,
        settings: Settings | InProcess | None = None,
        *,
        max_draft_tokens: int = 16,
    ) -> None:
        """`tokenizer`: the target's tokenizer.json. `settings`: default: the environment.

        Raises OSError and ValueError for invalid arguments.
        """
        self._client = DraftClient(
            settings or Settings.read({}),
            vocabulary=Vocabulary(read_vocabulary(tokenizer)),
            max_model_len=MAX_MODEL_LEN,
            max_requests=1,
            max_draft_tokens=max_draft_tokens,
            engine="llama-cpp-python",
        )
        self._tracker = Tracker()
        self._problems = Problems(logger)
        self._client.wait_until_connected(CONNECT_SECONDS)

    def close(self) -> None:
        """Close the connection. Answers continue without drafts."""
        self._client.close()

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return the draft that continues these tokens; empty if there is none."""
        try:
            return np.array(self._draft(input_ids), np.intc)
        except Exception:
            self._problems.show("no drafts in this step", logging.ERROR, has_trace=True)
            return np.array([], np.intc)

    def _draft(self, input_ids: NDArray[np.intc]) -> list[int]:
        tokens = np.asarray(input_ids, np.int32)
        if not len(tokens):
            return []
        [name], ended = self._tracker.match([0], [tokens])
        row = Row(name, tokens, num_prompt_tokens=max(len(tokens) - 1, 1))
        return self._client.step([row], ended)[0].token_ids


class LocalDrafts(RemoteDrafts):
    """A `LlamaDraftModel` with a drafter in this process. Serves a single `Llama`."""

    def __init__(
        self, tokenizer: Path | str, server: Mapping[str, Any], *, max_draft_tokens: int = 16
    ) -> None:
        """`tokenizer`: the target's tokenizer.json. `server`: the keys of a draft server's file.

        Raises ImportError if the package diffuspec is missing, and diffuspec's errors for an
        invalid file.
        """
        super().__init__(tokenizer, InProcess(server), max_draft_tokens=max_draft_tokens)

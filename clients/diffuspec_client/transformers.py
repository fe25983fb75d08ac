"""Drafts for `generate` of transformers: its assisted decoding, with a draft server as assistant.

    drafts = RemoteDrafts(tokenizer)
    model.generate(**inputs, custom_generate=drafts)

`LocalDrafts(tokenizer, {"preset": "smollm2"})` has its drafter in this process instead.

The target compares each drafted token with its own choice, so answers do not change: greedy ones
are equal in float32, sampled ones have the same distribution. Whatever assisted decoding does not
support, such as batches and stop strings, is decoded without drafts.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import GenerationMixin, __version__
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
)

from diffuspec_client.client import CONNECT_SECONDS, MAX_MODEL_LEN, DraftClient, Row
from diffuspec_client.in_process import InProcess
from diffuspec_client.problems import Problems
from diffuspec_client.settings import Settings
from diffuspec_client.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# Undocumented methods of transformers that are used here, with their parameters.
HOOKS = {
    "_assisted_decoding": {"logits_processor", "stopping_criteria", "generation_config"},
    "_get_candidate_generator": {"generation_config", "input_ids", "model_kwargs"},
    "_sample": {"logits_processor", "stopping_criteria", "generation_config"},
}
# valid with several tokens per step
_CRITERIA = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)
_MAX_REQUESTS = 64


def missing_hooks(mixin: type = GenerationMixin) -> list[str]:
    """Return the HOOKS that this release of transformers lacks."""
    return [
        name
        for name, parameters in HOOKS.items()
        if not parameters <= {*inspect.signature(getattr(mixin, name, lambda: None)).parameters}
    ]


class RemoteDrafts:
    """Decodes with the drafts of a server. Pass it to `generate` as `custom_generate`."""

    def __init__(
        self,
        tokenizer: Any,
        settings: Settings | InProcess | None = None,
        *,
        max_draft_tokens: int = 16,
    ) -> None:
        """`tokenizer`: the target's. `settings`: by default those of the environment.

        Raises OSError and ValueError for invalid settings.
        """
        self._client = DraftClient(
            settings or Settings.read({}),
            vocabulary=Vocabulary(tokenizer.get_vocab()),
            max_model_len=MAX_MODEL_LEN,
            max_requests=_MAX_REQUESTS,
            max_draft_tokens=max_draft_tokens,
            engine=f"transformers {__version__}",
        )
        self.max_draft_tokens = max_draft_tokens
        self._names = itertools.count(1)
        self._ended: list[str] = []
        self._lock = threading.Lock()  # only one thread may run a step at a time
        self._missing = missing_hooks()
        self._problems = Problems(logger)
        self._client.wait_until_connected(CONNECT_SECONDS)

    def close(self) -> None:
        """Close the connection. Answers continue without drafts."""
        self._client.close()

    def generate(self, model: Any, inputs: Any, streamer: Any = None, **options: Any) -> Any:
        """Call `model.generate` with drafts; `inputs`: token ids, or the output of a tokenizer.

        Pass streamers and stop strings to this method: transformers passes neither a streamer nor a
        tokenizer to a `custom_generate`.
        """
        given = {**inputs} if isinstance(inputs, Mapping) else {"inputs": inputs}
        if options.get("tokenizer") is not None:
            self._warn("a tokenizer is given, for stop strings, which are looked for in each step")
            return model.generate(**given, streamer=streamer, **options)
        decode = functools.partial(self.__call__, streamer=streamer)
        return model.generate(**given, streamer=streamer, custom_generate=decode, **options)

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode, with the signature that `generate` expects of decoding methods."""
        arguments = {
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "generation_config": generation_config,
            "streamer": streamer,
            **model_kwargs,
        }
        reason = self._reason_against(model, input_ids, arguments)
        if reason:
            self._warn(reason)
            is_beam = generation_config.num_beams > 1
            plain = type(model)._beam_search if is_beam else type(model)._sample
            return plain(model, input_ids, **arguments)
        candidates = _Candidates(self, model, int(generation_config.max_length))
        try:
            decode: Any = GenerationMixin._assisted_decoding
            return decode(_Assisted(model, candidates), input_ids, **arguments)
        finally:
            self._end(candidates.name)

    def _reason_against(
        self, model: Any, input_ids: torch.Tensor, arguments: Mapping[str, Any]
    ) -> str:
        """Return why this answer is decoded without drafts; "" if it has drafts."""
        config = arguments["generation_config"]
        others = [one for one in arguments["stopping_criteria"] if not isinstance(one, _CRITERIA)]
        reasons = {
            f"transformers {__version__} lacks {', '.join(self._missing)}": bool(self._missing),
            "several answers are decoded at a time": len(input_ids) != 1 or config.num_beams > 1,
            "the prompt is not given as token ids": not input_ids.shape[-1]
            or arguments.get("inputs_embeds") is not None,
            "the model has an encoder": model.config.is_encoder_decoder,
            "the model's state cannot be taken back": getattr(model, "_is_stateful", False),
            "there is no dynamic cache": not has_dynamic_cache(arguments),
            f"{type(others[0]).__name__ if others else ''} looks at the end of each step": bool(
                others
            ),
        }
        return next((reason for reason, applies in reasons.items() if applies), "")

    # ---- used by the candidates

    def new_name(self) -> str:
        return f"r{next(self._names)}"

    def draft(self, row: Row) -> list[int]:
        """Return the draft for an answer; empty if the connection is busy with another answer."""
        if not self._lock.acquire(blocking=False):
            return []
        try:
            ended, self._ended = self._ended, []
            return self._client.step([row], ended)[0].token_ids
        finally:
            self._lock.release()

    def _end(self, name: str) -> None:
        with self._lock:
            self._ended.append(name)

    def _warn(self, reason: str) -> None:
        self._problems.show(f"decoding goes on without drafts: {reason}")


class LocalDrafts(RemoteDrafts):
    """Decodes with a drafter in this process."""

    def __init__(
        self, tokenizer: Any, server: Mapping[str, Any], *, max_draft_tokens: int = 16
    ) -> None:
        """`tokenizer`: the target's. `server`: the keys of a draft server's file.

        Raises ImportError if the package diffuspec is missing, and diffuspec's errors for an
        invalid file.
        """
        super().__init__(tokenizer, InProcess(server), max_draft_tokens=max_draft_tokens)


class _Candidates(CandidateGenerator):
    """The candidate tokens of one answer."""

    def __init__(self, drafts: RemoteDrafts, model: Any, max_length: int) -> None:
        self.name = drafts.new_name()
        self._drafts = drafts
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._max_length = max_length
        self._num_prompt_tokens = 0  # 0: the prompt has not been read

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[Any, Any]:
        """Return the answer so far followed by a draft, and no logits."""
        if not self._num_prompt_tokens:  # nothing is learnt from the step that reads the prompt
            self._num_prompt_tokens = input_ids.shape[1]
            return input_ids, None
        left = self._max_length - input_ids.shape[1]
        if left <= 1:
            return input_ids, None
        row = Row(
            request_id=self.name,
            token_ids=input_ids[0].cpu().numpy().astype(np.int32),
            num_prompt_tokens=self._num_prompt_tokens,
            max_tokens_left=left,
            max_draft_tokens=min(self._drafts.max_draft_tokens, left - 1),
        )
        token_ids = [*itertools.takewhile(self._is_known, self._drafts.draft(row))]
        return torch.cat([input_ids, input_ids.new_tensor([token_ids])], dim=1), None

    def _is_known(self, token_id: int) -> bool:
        return token_id < self._vocab_size

    def update_candidate_strategy(self, *_: Any, **__: Any) -> None:
        """Nothing to do: the server decides how much to draft."""


class _Assisted:
    """A model that uses our candidates. It wraps the model, which others may use."""

    def __init__(self, model: Any, candidates: _Candidates) -> None:
        self._model = model
        self._candidates = candidates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **inputs: Any) -> Any:
        return self._model(**inputs)

    def _get_candidate_generator(self, *_: Any, **__: Any) -> _Candidates:
        return self._candidates


def has_dynamic_cache(arguments: Mapping[str, Any]) -> bool:
    """Return whether a decoding method is given a cache that grows and can be cut."""
    cache = arguments.get("cache", arguments.get("past_key_values"))  # renamed in 5.24
    is_fixed = getattr(cache, "is_compileable", False) or "Static" in type(cache).__name__
    return bool(arguments.get("use_cache")) and cache is not None and not is_fixed

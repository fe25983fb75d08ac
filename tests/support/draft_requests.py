"""Requests for drafts, with what most tests leave as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffuspec.core.params import SamplingParams, TreeShape
from diffuspec.core.types import DraftRequest, TokenIds


def draft_request(
    prefix: Sequence[int] | TokenIds,
    num_draft_tokens: int = 40,
    max_nodes: int = 64,
    name: str = "a",
    shape: TreeShape = "best_first",
    num_prompt_tokens: int = 0,
    **sampling: Any,
) -> DraftRequest:
    """Return the request for a draft after a prefix. sampling: parameters of its answer."""
    tokens, params = np.array(prefix, np.int32), SamplingParams(**sampling)
    return DraftRequest(
        name,
        tokens,
        num_draft_tokens,
        shape,
        max_nodes,
        0.5,
        params,
        num_prompt_tokens=num_prompt_tokens,
    )

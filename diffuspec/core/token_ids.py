"""Token ids on their way from the edge to the kernels: one read-only array of int32."""

from __future__ import annotations

import numpy as np

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.types import TokenIds


def read_only(token_ids: TokenIds) -> TokenIds:
    """Return token ids that all parts of the service may share, made read-only in place."""
    token_ids.flags.writeable = False
    return token_ids


def as_token_ids(prompt: object) -> TokenIds:
    """Return a flat list of token ids as a read-only array. Raises InvalidRequestError.

    An array that is one already is returned as it is.
    """
    if isinstance(prompt, np.ndarray) and prompt.dtype == np.int32 and prompt.ndim == 1:
        return prompt if not prompt.flags.writeable else read_only(prompt.copy())
    try:
        ids = np.asarray(prompt)
    except ValueError as error:  # rows of different lengths
        raise InvalidRequestError(f"a prompt of token ids must be flat: {error}") from error
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidRequestError("a prompt must be text, chat messages or a list of token ids")
    limits = np.iinfo(np.int32)
    if ids.size and not limits.min <= int(ids.min()) <= int(ids.max()) <= limits.max:
        raise InvalidRequestError(f"token ids must fit 32 bits, got {ids.min()} to {ids.max()}")
    return read_only(ids.astype(np.int32))

"""What tests ask of roles behind the wire."""

import numpy as np

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, DraftRequest, VerifyRequest

GREEDY = SamplingParams()


def verify_request(*prefix: int, request_id: str = "a") -> VerifyRequest:
    return VerifyRequest(request_id, np.array(prefix, np.int32), 1, EMPTY_TREE, GREEDY)


def draft_request(*prefix: int) -> DraftRequest:
    return DraftRequest("a", np.array(prefix, np.int32), 4, "path", 4, 1.0, GREEDY)

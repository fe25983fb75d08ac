"""Whether the kernels of this folder run on this machine."""

from __future__ import annotations

import functools
import logging

import torch

logger = logging.getLogger(__name__)


@functools.cache
def is_available() -> bool:
    """Try a kernel. Triton needs a GPU that it supports, and a C compiler at its first use."""
    if not torch.cuda.is_available():
        return False
    try:
        from diffuspec.models.kernels.triton import operations  # triton

        ones = torch.ones(1, 16, device="cuda")
        operations.normalise(ones, None, None, ones[0], 1e-6)
    except ImportError:
        return False
    except Exception as error:  # Triton raises anything
        logger.warning("the GPU's kernels cannot be compiled, so that steps are slower: %s", error)
        return False
    return True

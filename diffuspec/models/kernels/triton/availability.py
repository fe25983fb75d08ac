"""Checks whether the kernels in this folder run on this machine."""

from __future__ import annotations

import functools
import logging
import os

import torch

logger = logging.getLogger(__name__)

# Whether Triton is imported, which takes a second: not where torch is built for CPUs alone, unless
# kernels run in its interpreter.
IS_OF_USE = bool(
    torch.version.cuda or torch.version.hip or os.environ.get("TRITON_INTERPRET") == "1"
)


@functools.cache
def is_available() -> bool:
    """Try a kernel. Triton needs a supported GPU and, on first use, a C compiler."""
    if not torch.cuda.is_available():
        return False
    try:
        from diffuspec.models.kernels.triton import operations  # imports triton

        ones = torch.ones(1, 16, device="cuda")
        operations.normalise(ones, None, None, ones[0], 1e-6)
    except ImportError:
        return False
    except Exception as error:  # Triton may raise anything
        logger.warning("the GPU's kernels cannot be compiled, so that steps are slower: %s", error)
        return False
    return True

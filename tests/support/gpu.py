"""What tests on a GPU share."""

from __future__ import annotations

import pytest
import torch

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ("cpu", pytest.param("cuda", marks=NEEDS_GPU))

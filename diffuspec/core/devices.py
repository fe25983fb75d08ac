"""Where a model runs and in which precision, as configurations say it."""

from __future__ import annotations

from typing import Literal, TypeAlias

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

DEVICE_HELP = "Where the model runs; auto takes a GPU if there is one."
DTYPE_HELP = "Type of weights and activations; auto is bfloat16 on a GPU and float32 on CPUs."

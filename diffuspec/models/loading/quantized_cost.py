"""What a model's quantised weights cost on a GPU, compared with 16 bits, as lines of the log.

Formats that are slower to unpack than 16 bits are to read still save memory. Which they are depends
on the GPU, so that it is measured when a model is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from diffuspec.models.layers.linear import KernelLinear

logger = logging.getLogger(__name__)

_NUM_ROWS = (1, 16)  # rows of a plain step and of a draft's verification
_NUM_TIMES = 7
_FLUSHED_BYTES = 512 << 20  # written before each product: no GPU's cache holds as much


@torch.inference_mode()
def log_costs(path: Path, model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Log the time of each format's largest product, relative to the same product in 16 bits."""
    from diffuspec.models.kernels.triton.linear import LinearProduct  # imports Triton
    from diffuspec.models.kernels.triton.products import SplitProduct

    largest: dict[str, SplitProduct] = {}
    for module in model.modules():
        if isinstance(module, KernelLinear) and isinstance(module.product, SplitProduct):
            known = largest.setdefault(module.product.format, module.product)
            if module.product.num_outputs > known.num_outputs:
                largest[known.format] = module.product
    device = next(model.parameters()).device
    for form, product in largest.items():
        shape = product.num_outputs, product.num_inputs
        plain_bytes = shape[0] * shape[1] * dtype.itemsize
        if torch.cuda.mem_get_info(device)[0] < 2 * plain_bytes + _FLUSHED_BYTES:
            logger.info("%s: %s, without room to compare its speed", path, form)
            continue
        plain = LinearProduct(torch.zeros(shape, dtype=dtype, device=device), None, dtype)
        ratios = []
        for num_rows in _NUM_ROWS:
            rows = torch.zeros(num_rows, shape[1], dtype=dtype, device=device)
            ratios.append(_milliseconds(product, rows) / _milliseconds(plain, rows))
        log_ratios(path, form, ratios)


def log_ratios(path: Path, form: str, ratios: Sequence[float]) -> None:
    """Log times relative to 16 bits, of 1 and of 16 rows."""
    slow = max(ratios) > 1
    logger.log(
        logging.WARNING if slow else logging.INFO,
        "%s: on this GPU, products with %s take %.2f (1 row) and %.2f (16 rows) of the time of "
        "products with 16 bits%s",
        path,
        form,
        *ratios,
        ": these weights save memory, but no time" if slow else "",
    )


def _milliseconds(product: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """Return the median time of a product whose weights are in no cache."""
    device = rows.device
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
    product(rows)  # compiles the kernels
    times = []
    for _ in range(_NUM_TIMES):
        events = _event(), _event()
        flushed.zero_()  # takes longer than to launch what follows
        events[0].record()
        product(rows)
        events[1].record()
        events[1].synchronize()
        times.append(float(events[0].elapsed_time(events[1])))
    return median(times)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

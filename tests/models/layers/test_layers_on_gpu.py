"""A decoder layer on a GPU: few launches, and the bits of its operations one by one.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime.jit import KernelInterface

from diffuspec.models.attention.interface import Attention, attending
from diffuspec.models.attention.segment import Segment
from diffuspec.models.attention.triton import TritonAttention
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.triton import operations as on_gpu
from diffuspec.models.layers import fused_decoder, linear
from diffuspec.models.layers.fused_decoder import FusedDecoderLayer, use_fused_layers
from diffuspec.models.pages.store import CacheShape, PageStore
from tests.support.models import SHAPE, fixed_table, make_model

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32
DIM = SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
START, NUM_ROWS = 5, 3


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the kernels of GPUs on whatever device there is."""

    def norm(inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return on_gpu.normalise(inputs, None, None, weight, epsilon)

    def rotate(rows: Tensor, cos: Tensor, sin: Tensor, num_heads: int, dim: int) -> None:
        heads = rows[:, : num_heads * dim].view(len(rows), -1, dim)
        operations._rotate_by_torch(heads, cos, sin)

    def linear_on_gpu(weight: Tensor, bias: Tensor | None, *_: Any) -> linear.AnyLinear:
        return linear._linear_on_gpu(weight.detach(), bias, is_exact=True, is_partial=False)

    if not HAS_GPU:
        monkeypatch.setattr(operations, "norm", norm)
        monkeypatch.setattr(operations, "rotate", rotate)
        monkeypatch.setattr(operations, "gate", on_gpu.gate)
        monkeypatch.setattr(linear, "fastest_linear", linear_on_gpu)
    with torch.inference_mode():
        yield


class Launches(TorchDispatchMode):
    """Counts the kernels of Triton and of torch that are launched within the context."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        self._is_in_kernel = False
        launcher = KernelInterface.__getitem__

        def counted(kernel: Any, grid: Any) -> Any:
            def launch(*args: Any, **kwargs: Any) -> None:
                self.names.append(kernel.__name__)
                self._is_in_kernel = True  # the interpreter uses torch
                launcher(kernel, grid)(*args, **kwargs)
                self._is_in_kernel = False

            return launch

        monkeypatch.setattr(KernelInterface, "__getitem__", counted)

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not (self._is_in_kernel or func.is_view or name.startswith(("empty", "new_empty"))):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def layer_of(family: str) -> tuple[Any, FusedDecoderLayer]:
    model = make_model(family).to(DEVICE, DTYPE)
    model.set_attn_implementation("diffuspec")
    linear.use_fast_layers(model, is_exact=True)
    use_fused_layers(model.base_model)
    layer = model.base_model.layers[0]
    assert isinstance(layer, FusedDecoderLayer)
    return model.base_model, layer


def run(base: Any, layer: FusedDecoderLayer, attention: Attention, num_rows: int) -> Tensor:
    torch.manual_seed(0)
    rows = torch.randn(1, NUM_ROWS, SHAPE["hidden_size"]).to(DEVICE, DTYPE)[:, :num_rows]
    positions = torch.arange(START, START + num_rows, device=DEVICE)[None]
    angles = tuple(part.contiguous() for part in base.rotary_emb(rows, positions))
    with attending(attention):
        return layer(rows, position_embeddings=angles)


def attention_of(num_rows: int) -> TritonAttention:
    store = PageStore(CacheShape(1, SHAPE["num_key_value_heads"], DIM), 5, DTYPE, DEVICE)
    torch.manual_seed(1)
    for part in store.layer(0):
        part.copy_(torch.randn(part.shape))
    positions = np.arange(START, START + num_rows)
    segment = Segment(fixed_table(0), START, positions, positions, "causal", ())
    return TritonAttention([segment], store)


@pytest.mark.parametrize(("family", "most"), [("qwen2", 9), ("qwen3", 9)])
def test_a_layer_has_few_launches(family: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base, layer = layer_of(family)
    attention = attention_of(NUM_ROWS)
    attention.step_table(2)
    run(base, layer, attention, NUM_ROWS)  # places the table
    launches = Launches(monkeypatch)
    inner = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        with launches:
            return inner(*args, **kwargs)

    monkeypatch.setattr(layer, "forward", forward)
    run(base, layer, attention, NUM_ROWS)
    assert len(launches.names) <= most, launches.names


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_what_is_fused_changes_no_bit(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, layer = layer_of(family)
    fused = run(base, layer, attention_of(NUM_ROWS), NUM_ROWS)
    if HAS_GPU:  # elsewhere a sum's order depends on the shape of its tile
        assert torch.equal(run(base, layer, attention_of(1), 1)[0], fused[0, :1])
    monkeypatch.setattr(fused_decoder, "_fused_product", lambda layer: None)
    monkeypatch.setattr(TritonAttention, "attend_heads", Attention.attend_heads)
    monkeypatch.setattr(operations, "norm_of_sum", _norm_of_sum)
    found = run(base, layer, attention_of(NUM_ROWS), NUM_ROWS)
    if HAS_GPU:  # a rotation's products and sums may be rounded together
        torch.testing.assert_close(found, fused)
    else:
        assert torch.equal(found, fused)


def _norm_of_sum(
    inputs: Tensor, added: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    sums = torch.empty_like(inputs)
    return sums, on_gpu.normalise(inputs, added, sums, weight, epsilon)

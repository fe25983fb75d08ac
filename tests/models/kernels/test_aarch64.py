"""Products on aarch64, compiled for it and run in an emulator, have the bits of those of x86-64."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from diffuspec.models.kernels import operations, products
from diffuspec.models.kernels.products import MatrixProduct

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "diffuspec" / "models" / "kernels" / "cpu"
NAMES = [
    *("products", "neon_products", "narrow_products", "vector_products", "quantized_products"),
    *("tile_products", "tiles", "level", "numbers"),
]
OUTPUTS, INPUTS = 150, 77

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which(COMPILER), reason=f"needs {COMPILER}"),
    pytest.mark.skipif(not shutil.which(EMULATOR), reason=f"needs {EMULATOR}"),
    pytest.mark.skipif(not products.has_vectors(), reason="needs products to compare with"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aarch64") / "products"
    files = [SOURCES / f"{name}.cpp" for name in NAMES]
    files.append(Path(__file__).parent / "native" / "products_of_stdin.cpp")
    flags = ["-O2", "--param=avoid-fma-max-bits=0", "-std=c++17", "-static", "-Wno-psabi"]
    flags += [f"-I{SOURCES}", "-o", str(path)]
    subprocess.run([COMPILER, *flags, *map(str, files)], check=True)
    return path


def described(product: MatrixProduct, inputs: torch.Tensor) -> bytes:
    """Return what the program reads of a product."""
    matrix = product.matrix
    padded, group = OUTPUTS + -OUTPUTS % 64, 4 if matrix.scales else 1
    size = 1 if matrix.scales else 4 if matrix.weight_type == operations.TYPES[torch.float32] else 2
    num_bytes = padded * -(-INPUTS // group) * group * size
    header = struct.pack(
        "7i",
        operations.TYPES[inputs.dtype],
        matrix.weight_type,
        INPUTS,
        OUTPUTS,
        len(inputs),
        num_bytes,
        bool(matrix.scales),
    )
    arrays = (matrix.biases, matrix.scales, matrix.offsets) if matrix.scales else (matrix.biases,)
    parts = [ctypes.string_at(array, 4 * padded) for array in arrays]
    weights = ctypes.string_at(matrix.weights, num_bytes)
    return b"".join([header, weights, *parts, inputs.numpy().tobytes()])


def test_products_have_the_bits_of_x86_64(program: Path) -> None:
    random = torch.Generator().manual_seed(0)
    asked, expected = [], []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight = torch.randn(OUTPUTS, INPUTS, generator=random).to(dtype).float()
        bias = torch.randn(OUTPUTS, generator=random)
        for rounds in (False, True):
            product = MatrixProduct(weight, bias, rounds)
            for num_rows in (1, 2, 3, 4, 6, 7, 20):
                inputs = torch.randn(num_rows, INPUTS, generator=random)
                asked.append(described(product, inputs))
                expected.append(product(inputs).numpy().tobytes())
    command = [EMULATOR, str(program)]
    found = subprocess.run(command, input=b"".join(asked), stdout=subprocess.PIPE, check=True)
    assert found.stdout == b"".join(expected)

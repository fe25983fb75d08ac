"""Kernels compiled by Clang, or for aarch64 and run in an emulator, compute the same bits."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from diffuspec.models.kernels import levels, operations
from diffuspec.models.kernels.products import MatrixProduct

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "diffuspec" / "models" / "kernels" / "cpu"
FLAGS = "-O1", "-std=c++17", "-Wno-psabi", f"-I{SOURCES}"
NATIVE = Path(__file__).parent / "native"
PROGRAMS = ("checksums", "products_of_stdin")
KERNELS = (
    *("level", "numbers", "tiles"),
    *("products", "plain_products", "dot_products", "narrow_products", "vector_products"),
    *("bfloat16_products", "dynamic_products", "quantized_products", "tile_products"),
    *("attention", "block_sums", "columns", "elementwise", "tile_attention", "tile_sums"),
)
# What `native/checksums.cpp` writes on x86-64-v3, on x86-64-v4 and on aarch64.
CHECKSUMS = """\
norm a9deafc4a5b8596b
gate c6d43e24fdac1fa1
rotation b9820b7bd2ebf76b
attention c251a37e320e75c3
attention e18f02ccf3d19258
attention eb718ffe6c820fff
attention, transposed 67165d82eee860bb
attention, transposed 6d9643102e01091a
attention, transposed 417899c437eac9ef
product 2f892b4b5e60027d
product 4abcad74194ceec8
product 6f724744a8eeed6b
product 428e9d987ca0d505
product, rows in 8 bits ef2e3ce25d94d803
product, rows in 8 bits c64d7d01f1a716b7
product, rows in 8 bits db0688b0882d74da
product, rows in 8 bits e5026a4e70f47ef7
"""
OUTPUTS, INPUTS = 150, 77

pytestmark = pytest.mark.slow


class Toolchain(NamedTuple):
    """A compiler, its options that fuse products and sums, and what runs its programs."""

    name: str
    compiler: str
    options: tuple[str, ...]
    emulator: tuple[str, ...]
    levels: tuple[str, ...]  # arguments of the programs: see cpu/level.h

    @property
    def needs(self) -> list[str]:
        return [self.compiler, *self.emulator]


TOOLCHAINS = (
    Toolchain(
        "aarch64",
        "aarch64-linux-gnu-g++",
        ("-static", "-fexpensive-optimizations", "--param=avoid-fma-max-bits=0"),
        ("qemu-aarch64-static",),
        ("0", "1"),
    ),
    Toolchain("Clang", "clang++", ("-ffp-contract=fast",), (), ("3", "4")),
)


@pytest.fixture(params=TOOLCHAINS, ids=lambda toolchain: toolchain.name)
def toolchain(request: pytest.FixtureRequest) -> Toolchain:
    found: Toolchain = request.param
    if missing := [name for name in found.needs if not shutil.which(name)]:
        pytest.skip(f"needs {', '.join(missing)}")
    if levels.level() == "x86-64":
        pytest.skip("needs a processor that rounds once in a multiply-add")
    return found


def compiled(toolchain: Toolchain, program: str) -> list[str]:
    """Return the command that runs a program of `native` over the kernels.

    Compiling takes half a minute: what the same sources gave is kept in build.
    """
    command = [toolchain.compiler, *FLAGS, *toolchain.options]
    version = [toolchain.compiler, "--version"]
    compiler = subprocess.run(version, stdout=subprocess.PIPE, check=True).stdout
    read = [*sorted(SOURCES.iterdir()), *sorted(NATIVE.iterdir())]
    sources = b"".join(file.read_bytes() for file in read if file.is_file())
    digest = hashlib.sha256(b"".join([compiler, *map(os.fsencode, command), sources])).hexdigest()
    folder = ROOT / "build" / toolchain.name
    path = folder / digest[:16]
    if not path.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=folder) as new:  # whole, if it is there at all
            _compile(command, Path(new))
            os.rename(new, path)
            Path(new).mkdir()
    return [*toolchain.emulator, str(path / program)]


def _compile(command: Sequence[str], folder: Path) -> None:
    """Compile the kernels once, and both programs with them."""
    kernels = [SOURCES / f"{name}.cpp" for name in KERNELS]
    subprocess.run([*command, "-c", *map(str, kernels)], cwd=folder, check=True)
    objects = [f"{name}.o" for name in KERNELS]
    for program in PROGRAMS:
        own = [str(NATIVE / f"{program}.cpp"), *objects]
        subprocess.run([*command, *own, "-o", program], cwd=folder, check=True)


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


@pytest.mark.skipif(not operations.is_available, reason="needs products to compare with")
def test_products_have_the_same_bits(toolchain: Toolchain) -> None:
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
    command = compiled(toolchain, "products_of_stdin")
    for level in toolchain.levels:
        found = subprocess.run(
            [*command, level], input=b"".join(asked), stdout=subprocess.PIPE, check=True
        )
        assert found.stdout == b"".join(expected), level


def test_other_operations_have_the_same_bits(toolchain: Toolchain) -> None:
    command = compiled(toolchain, "checksums")
    for level in toolchain.levels:
        found = subprocess.run([*command, level], capture_output=True, text=True, check=True)
        assert found.stdout == CHECKSUMS, level

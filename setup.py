"""Compile the operations over rows on a CPU; without a C++ compiler, torch's are used instead."""

from glob import glob

from setuptools import Extension, setup

_FOLDER = "diffuspec/models/rows/native"

setup(
    ext_modules=[
        Extension(
            "diffuspec.models.rows._rows",
            sorted(glob(f"{_FOLDER}/*.cpp")),
            depends=sorted(glob(f"{_FOLDER}/*.h")),
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-fopenmp",
                "-fvisibility=hidden",
                # GCC 13 splits products and sums of some functions and not of others, for speed:
                # a row computed alone would differ from the same row among others.
                "--param=avoid-fma-max-bits=0",
                "-Wno-psabi",
                "-Wno-maybe-uninitialized",
            ],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ]
)

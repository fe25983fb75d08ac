"""Compile the operations over rows on a CPU; without a C++ compiler, torch's are used instead."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "diffuspec.models.rows._rows",
            ["diffuspec/models/rows/_rows.cpp"],
            extra_compile_args=["-O3", "-std=c++17", "-fvisibility=hidden", "-Wno-psabi"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)

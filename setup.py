"""What pyproject.toml cannot say: the kernels, and which files a wheel has.

The operations over rows on a CPU are compiled, and so is the scorer of n-gram models; without a C++
compiler, torch's operations are used instead, and no n-gram models.
"""

from glob import glob
from pathlib import Path
from shutil import copytree, ignore_patterns
from subprocess import run

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

_FOLDER = "diffuspec/models/kernels/cpu"

_OF_GCC = [
    # GCC 13 splits products and sums of some functions and not of others, for speed: a row computed
    # alone would differ from the same row among others.
    "--param=avoid-fma-max-bits=0",
    "-Wno-maybe-uninitialized",
]

# Packages beside the library, which `diffuspec batch` and `diffuspec ray` import from a folder of
# its own: their names are too common for the place where all distributions are installed.
_BESIDE = ("actors", "deploy")
_BESIDE_LEFT_OUT = ignore_patterns(
    *("__pycache__", "docker", "kuberay", "grafana", "demo.py"),
)


class BuildExt(build_ext):
    """Compile with the options that GCC alone has where the compiler is GCC."""

    def build_extensions(self) -> None:
        version = run([self.compiler.compiler_so[0], "--version"], capture_output=True, text=True)
        if "clang" not in version.stdout:
            for extension in self.extensions:
                extension.extra_compile_args += _OF_GCC
        super().build_extensions()


class BuildPy(build_py):
    """Add the packages beside the library."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in _BESIDE:
            target = Path(self.build_lib, "diffuspec", "_ray", name)
            copytree(name, target, ignore=_BESIDE_LEFT_OUT, dirs_exist_ok=True)


setup(
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
    ext_modules=[
        Extension(
            "diffuspec.models.kernels._cpu",
            sorted(glob(f"{_FOLDER}/*.cpp")),
            depends=sorted(glob(f"{_FOLDER}/*.h")),
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-fopenmp",
                "-fvisibility=hidden",
                "-ffp-contract=fast",
                "-Wno-psabi",
            ],
            extra_link_args=["-fopenmp"],
            optional=True,
        ),
        Extension(
            "diffuspec.models.ngram._trie",
            ["diffuspec/models/ngram/trie.cpp"],
            extra_compile_args=["-O3", "-std=c++17", "-fvisibility=hidden"],
            optional=True,
        ),
    ],
)

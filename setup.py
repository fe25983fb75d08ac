"""What pyproject.toml cannot say: the kernels, and which files a wheel has.

The operations over rows on a CPU are compiled; without a C++ compiler, torch's are used instead.
"""

from fnmatch import fnmatch
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

# Of the checkout alone: how the embedded pair was made, studies, and tools that test a service.
_LEFT_OUT = (
    "diffuspec.bench.virtual_time*",
    "diffuspec.bench.studies.*",
    "diffuspec.pairs.tiny.corpus*",
    "diffuspec.pairs.tiny.train*",
)
# Studies that are options of `diffuspec bench`.
_STUDIES = ("__init__", "ablations", "load", "overlap", "pre_drafts", "sweeps")
# Packages beside the library, which `diffuspec batch` and `diffuspec ray` import from a folder of
# its own: their names are too common for the place where all distributions are installed.
_BESIDE = ("actors", "deploy")
_BESIDE_LEFT_OUT = ignore_patterns(
    *("__pycache__", "docker", "kuberay", "grafana"),
    *("abuse.py", "bench.py", "chaos.py", "demo.py", "recoveries.py", "rested.py", "step_cost.py"),
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
    """Leave out what is of the checkout alone, and add the packages beside the library."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [one for one in found if not _is_left_out(f"{one[0]}.{one[1]}")]

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in _BESIDE:
            target = Path(self.build_lib, "diffuspec", "_ray", name)
            copytree(name, target, ignore=_BESIDE_LEFT_OUT, dirs_exist_ok=True)


def _is_left_out(module: str) -> bool:
    package, _, name = module.rpartition(".")
    if package == "diffuspec.bench.studies" and name in _STUDIES:
        return False
    return any(fnmatch(module, pattern) for pattern in _LEFT_OUT)


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
        )
    ],
)

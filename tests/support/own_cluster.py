"""Runs a module that starts a Ray cluster of its own; the cluster's workers are forked.

python tests/support/forked.py tests/support/own_cluster.py MODULE ARGUMENT...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ray._private import ray_constants


def main() -> None:
    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).with_name("forked.py"))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

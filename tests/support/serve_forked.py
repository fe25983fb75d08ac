"""The command `diffuspec`, whose engine processes are forked.

python -m tests.support.serve_forked ARGUMENT...    writes its process id first
"""

from __future__ import annotations

import os

from deploy.forked import forked
from diffuspec.cli import main
from diffuspec.data_parallel import process

if __name__ == "__main__":
    process.PYTHON = tuple(forked())
    print(os.getpid(), flush=True)
    main()

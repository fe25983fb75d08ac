"""`python deadly_training.py TARGET ANSWERS OUT N`: a training that is killed in its N-th change.

What changes is a file in OUT: one that is opened for writing, or takes another's place.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from diffuspec.pairs.factory.training import DrafterPlan, DrafterTraining

NUM_CHUNKS = 3


def make_plan(target: Path, answers: Path, out: Path) -> DrafterPlan:
    return DrafterPlan(
        target,
        out,
        (answers,),
        layers=(1,),
        num_chunks=NUM_CHUNKS,
        tokens_per_batch=400,
        matrix_lr=0.05,
        report_every=1,
    )


def die_in_change(out: Path, number: int) -> None:
    """Kill this process when it begins its `number`-th change of a file in a folder."""
    changes = itertools.count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wa"
        is_change = (writes or event == "os.rename") and str(arguments[0]).startswith(str(out))
        if is_change and next(changes) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    plan = make_plan(*map(Path, sys.argv[1:4]))
    die_in_change(plan.out, int(sys.argv[4]))
    DrafterTraining(plan).run()

"""How a batch that could not go on ends: what it says."""

import errno
import os
from pathlib import Path

import pytest

from deploy.batch import _finish
from deploy.batches.command import Outcome
from deploy.batches.services import BatchStoppedError
from deploy.batches.summary import Counts


def test_a_full_disk_names_the_file_and_says_that_the_same_command_goes_on() -> None:
    problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    outcome = Outcome(Counts(3), problem=problem)
    outcome.counts.now.num_rows = 2
    with pytest.raises(BatchStoppedError) as stopped:
        _finish(outcome, Path("out.jsonl"))
    message = str(stopped.value)
    assert message.startswith("cannot write out.jsonl: No space left on device (2 of 3")
    assert message.endswith("the same command goes on from there)")

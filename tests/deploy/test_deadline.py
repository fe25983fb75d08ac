"""A wait that has no bound of its own ends the command."""

import subprocess
import sys

from deploy.cluster_watch import ended_within

COMMAND = """
import time
from deploy.cluster_watch import ended_within

with ended_within(0.2, "the end of nothing"):
    time.sleep(1000)
"""


def test_a_block_that_takes_too_long_ends_the_command_with_an_error():
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=False
    )
    said = "error: the end of nothing has taken 0.2 seconds: this command ends without it\n"
    assert (ended.returncode, ended.stderr) == (1, said)


def test_a_block_that_ends_in_time_does_not():
    with ended_within(60, "the test"):
        pass

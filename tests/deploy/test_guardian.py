"""A command that is killed takes with it what it has started, wherever in the tree of processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deploy.guardian import VARIABLE, guarded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guardians read /proc")

COMMAND = """
import subprocess, sys, time
from pathlib import Path
from deploy.guardian import guarded

with guarded(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def start(directory: Path, seconds: float) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a command that has a child in a session of its own; return both."""
    arguments = [sys.executable, "-c", COMMAND, str(directory), str(seconds)]
    command = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    return command, psutil.Process(int(command.stdout.readline()))


@pytest.mark.parametrize(("seconds", "number"), [(0.0, 0), (1000.0, signal.SIGKILL)])
def test_what_a_command_started_ends_with_it_and_its_files_are_removed(tmp_path, seconds, number):
    directory = tmp_path / "files"
    (directory / "below").mkdir(parents=True)
    command, child = start(directory, seconds)
    if number:
        command.send_signal(number)
    command.communicate()
    assert command.returncode == -number
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    while directory.exists():
        time.sleep(0.01)


def test_the_mark_of_a_context_hides_that_of_the_one_around_it(monkeypatch):
    monkeypatch.setenv(VARIABLE, "outer")
    with guarded():
        assert os.environ[VARIABLE] != "outer"
    assert os.environ[VARIABLE] == "outer"

"""Processes that the fork server forks pass for those that they stand for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked as forked_module
from tests.support.forked import SERVER_VARIABLE, forked

pytestmark = pytest.mark.process

PROGRAM = """
import os, sys, time
print(sys.argv[1:], os.getcwd(), os.environ["ANSWER"], sys.stdin.read(), flush=True)
if sys.argv[1] == "waits":
    time.sleep(60)
sys.exit(sys.argv[1] or 0)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def start(program: Path, argument: str) -> subprocess.Popen[str]:
    pipe, environment = subprocess.PIPE, {**os.environ, "ANSWER": "42"}
    command = forked(program, argument)
    process = subprocess.Popen(
        command, cwd="/", env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None
    process.stdin.write("a line")
    process.stdin.close()
    process.stdin = None
    return process


def test_arguments_folder_environment_streams_and_exit_code_are_its_own(program):
    process = start(program, "an error")
    assert process.communicate() == ("['an error'] / 42 a line\n", "an error\n")
    assert process.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(program, number):
    with start(program, "waits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "['waits'] / 42 a line\n"
        process.send_signal(number)
        assert process.stdout.read() == "", "the pipe is closed at both of its ends"
        assert process.wait() == -number


def test_a_request_that_breaks_off_does_no_harm(program):
    for sent in (b"", b"\0\0\1\0 and no more"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[SERVER_VARIABLE])
            connection.sendall(sent)
    process = start(program, "")
    process.communicate()
    assert process.returncode == 0


WORKER = """
import subprocess, sys, os
from tests.support.forked import forked
print(os.getpid(), flush=True)
subprocess.run(forked(*sys.argv[1:]), check=True)
"""


def test_a_worker_of_xdist_has_its_processes_below_it(tmp_path):
    child = tmp_path / "child.py"
    child.write_text("import psutil; print(psutil.Process().parents()[1].pid)")
    done = subprocess.run(forked("-c", WORKER, child), capture_output=True, text=True, check=True)
    worker, above_child = done.stdout.split()
    assert worker == above_child


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER_VARIABLE)


@pytest.mark.usefixtures("no_server")
def test_without_a_server_it_becomes_the_program(program):
    process = start(program, "")
    assert process.communicate() == ("[''] / 42 a line\n", "")
    assert process.returncode == 0


def context(**values: object) -> str:
    plain = {"command_prefix": [], "env_vars": {"A": "1"}, "py_executable": sys.executable}
    return f"--serialized-runtime-env-context={json.dumps(plain | values)}"


def test_a_worker_of_ray_has_the_variables_of_its_runtime_environment():
    program = forked_module._asked_for(
        ["-u", "worker.py", "--node", context(), "--language=PYTHON"]
    )
    assert program.arguments == ["worker.py", "--node"]
    assert program.environment == {**os.environ, "A": "1"}


@pytest.mark.parametrize("given", [{"py_executable": "uv run"}, {"command_prefix": ["nice"]}])
def test_a_worker_with_another_python_is_left_to_ray(given, monkeypatch):
    class Became(BaseException):
        pass

    def become(path: str, arguments: list[str]) -> None:
        assert Path(arguments[1]).name == "setup_worker.py" and Path(arguments[1]).exists()
        assert arguments[2:] == ["worker.py", context(**given)]
        raise Became

    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(Became):
        forked_module._asked_for(["worker.py", context(**given)])


def test_a_program_has_the_threads_that_it_was_given(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import torch; print(torch.get_num_threads())")
    command, threads = forked(program), {**os.environ, "OMP_NUM_THREADS": "3"}
    done = subprocess.run(command, env=threads, capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"

"""A batch whose process is killed again and again has the output of one that was not."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.batches import chat, results_in

ROOT = Path(__file__).parents[3]
NUM_ROWS = 200
NUM_KILLS = 10

# Prints a line for each result that is on disk; hangs after a number of rows, or 0: answers all.
BATCH = """
import asyncio, sys
from pathlib import Path

from deploy.batches.inputs import jsonl_file, read, scan
from deploy.batches.outputs import open_output
from deploy.batches.run import Options, Run
from tests.support.batches import Echo, Stuck

async def answer(source, target, num_rows):
    index = scan(source)
    with open_output(target, index, lambda result: None) as output:
        lines = read(source, index, output.done)
        options = Options(8, 60.0, {}, {})
        tell = lambda result: print(result["custom_id"], flush=True)
        await Run(Stuck(num_rows) if num_rows else Echo(), output, options, tell).finish(lines)

source, target, num_rows = sys.argv[1:]
asyncio.run(answer(jsonl_file(Path(source)), Path(target), int(num_rows)))
"""


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", BATCH, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def finish(*arguments: object) -> None:
    with start(*arguments) as process:
        process.communicate()
    assert process.returncode == 0


@pytest.mark.process
def test_ten_kills_leave_no_row_out_and_none_twice(written, tmp_path):
    rows = [chat(f"row {number}") for number in range(NUM_ROWS)]
    rows[7::20] = [chat("wrong") for _ in rows[7::20]]
    source, once, killed = written(*rows), tmp_path / "once.jsonl", tmp_path / "killed.jsonl"
    finish(source, once, 0)
    moments = random.Random(23)
    for _ in range(NUM_KILLS):
        num_read = moments.randrange(1, NUM_ROWS // NUM_KILLS - 8)
        with start(source, killed, num_read + moments.randrange(8)) as process:
            assert process.stdout is not None
            for _ in range(num_read):
                process.stdout.readline()
            process.kill()
        assert process.returncode == -9
        if moments.random() < 0.5:  # as a kill in the middle of a write, or a full disk
            with killed.open("ab") as file:
                file.write(b'{"id": "batch_req_1')
    finish(source, killed, 0)
    assert len(results_in(once)) == NUM_ROWS
    assert results_in(killed) == results_in(once)

"""What is in an output after a kill, and which outputs are not gone on with."""

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.batches.inputs import Index, jsonl_file, scan
from deploy.batches.outputs import drop_failures, open_output
from deploy.batches.results import Reply, answered, encode, failed
from diffuspec.core.errors import ConfigError


@pytest.fixture
def index(written) -> Index:
    return scan(jsonl_file(written({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"})))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def result(index: Index, number: int) -> dict[str, object]:
    reply = Reply(200, "r", {"choices": []})
    return answered(number, index.digests[number], f"line-{number}", reply)


def failure(index: Index, number: int) -> dict[str, object]:
    digest = index.digests[number]
    return failed(number, digest, f"line-{number}", "invalid_json", "the line is not JSON")


def ignore(result: object) -> None: ...


def contents(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_results_are_in_the_file_when_append_returns(path, index):
    with open_output(path, index, ignore) as output:
        await asyncio.gather(*(output.append(result(index, number), ignore) for number in (2, 1)))
        assert contents(path) == [result(index, 2), result(index, 1)]
        await output.append(result(index, 3), ignore)
    assert len(contents(path)) == 3


async def test_a_result_whose_writer_is_cancelled_is_written(path, index):
    with open_output(path, index, ignore) as output:
        seen: list[object] = []
        appending = asyncio.create_task(output.append(result(index, 1), seen.append))
        await asyncio.sleep(0)
        appending.cancel()
        await output.flush()
    assert contents(path) == seen == [result(index, 1)]


@pytest.mark.parametrize("length", [1, 20, 10_000_000])
def test_a_line_that_a_kill_cut_off_is_removed_wherever_it_was_cut(path, index, length):
    first, second = encode(result(index, 1)), encode(result(index, 2))
    torn = second[:length] if length < len(second) else b"x" * length  # beyond a block
    path.write_bytes(first + torn)
    seen: list[object] = []
    with open_output(path, index, seen.append) as output:
        assert list(output.done) == [0, 1, 0, 0]
    assert seen == [result(index, 1)]
    assert path.read_bytes() == first


async def test_a_disk_that_is_full_is_one_error_and_the_next_run_goes_on(path, index):
    line = encode(result(index, 1))
    with pytest.raises(OSError, match="File too large"), open_output(path, index, ignore) as output:
        await output.append(result(index, 1), ignore)
        with at_most(len(line) + 10):
            await output.append(result(index, 2), ignore)
    assert path.read_bytes() == line + encode(result(index, 2))[:10]
    with open_output(path, index, ignore) as output:
        await output.append(result(index, 2), ignore)
    assert contents(path) == [result(index, 1), result(index, 2)]


@contextmanager
def at_most(num_bytes: int) -> Iterator[None]:
    """Let files of this process have a number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_output_that_is_one_torn_line_is_empty(path, index):
    path.write_bytes(b'{"id": "batch')
    with open_output(path, index, ignore) as output:
        assert not any(output.done)
    assert path.read_bytes() == b""


def assert_refused(path: Path, index: Index, message: str) -> None:
    with pytest.raises(ConfigError, match=message), open_output(path, index, ignore):
        pass


@pytest.mark.parametrize(
    "line", ['{"prompt": "a"}', "[]", "{", '{"id": "batch_req_0_12", "custom_id": null}']
)
def test_a_file_of_something_else_is_refused_and_kept(path, index, line):
    path.write_text(f"{line}\n")
    assert_refused(path, index, "line 1 is no result of a batch; give another --output")
    assert path.read_text() == f"{line}\n"


@pytest.mark.parametrize(("number", "change"), [(1, 1), (7, 0)])
def test_an_output_of_another_input_is_refused(path, index, number, change):
    digest = index.digests[1] ^ change
    path.write_bytes(encode(answered(number, digest, "a", Reply(200, "r", {}))))
    assert_refused(path, index, f"of another input, or of other options: line {number}")


def test_two_results_for_one_row_are_refused(path, index):
    path.write_bytes(encode(result(index, 2)) * 2)
    assert_refused(path, index, "line 2 is a second result for line 2")


def test_two_batches_do_not_share_an_output(path, index):
    with open_output(path, index, ignore):
        assert_refused(path, index, "in use by another batch")


def test_an_output_that_cannot_be_written_is_refused(tmp_path, index):
    assert_refused(tmp_path, index, r"the output must be a file; .* is a folder or")


def test_results_of_failed_rows_can_be_dropped(path, index):
    assert drop_failures(path) == 0
    lines = [result(index, 1), failure(index, 2), result(index, 3)]
    path.write_bytes(b"".join(map(encode, lines)) + b'{"torn')
    assert drop_failures(path) == 1
    assert contents(path) == [result(index, 1), result(index, 3)]
    assert list(path.parent.glob("out*")) == [path]


def test_half_a_surrogate_pair_in_an_id_is_escaped(index):
    line = encode(failed(1, index.digests[1], "\ud800", "invalid_row", "wrong"))
    assert json.loads(line)["custom_id"] == "\ud800"

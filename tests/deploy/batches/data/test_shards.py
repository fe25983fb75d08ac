"""Parts of an input: together they are all of it, each row once, the same on every run."""

import json
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from deploy.batches.data.shards import check_dependencies, plan
from diffuspec.core.errors import ConfigError, MissingDependencyError

ROWS = [{"prompt": "x" * (number % 7), "n": number} for number in range(50)]


def rows_of(path: Path, shard_bytes: int) -> list[object]:
    shards = plan(path, shard_bytes).shards
    return [json.loads(line.content) for one in shards for line in one.source(b"").lines()]


@pytest.mark.parametrize("shard_bytes", [1, 7, 100, 10_000])
def test_parts_of_jsonl_have_every_row_once_wherever_they_are_cut(written, shard_bytes):
    assert rows_of(written(*ROWS), shard_bytes) == ROWS


def test_row_groups_are_the_parts_of_parquet_and_nulls_are_no_keys(tmp_path):
    table = pyarrow.Table.from_pylist([*ROWS, {"prompt": "last"}])
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=20)
    assert len(plan(tmp_path / "in.parquet", 1).shards) == 3
    assert rows_of(tmp_path / "in.parquet", 1) == [*ROWS, {"prompt": "last"}]


def test_messages_in_parquet_are_what_they_were(tmp_path):
    row = {"custom_id": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "in.parquet")
    assert rows_of(tmp_path / "in.parquet", 1) == [row]


def test_files_of_a_folder_are_read_by_name_and_rows_without_an_id_are_told_apart(
    written, tmp_path
):
    written({"prompt": "b"}, name="b.jsonl")
    written({"prompt": "a"}, {"prompt": "c"}, name="a.jsonl")
    (tmp_path / "README.md").write_text("no rows")
    lines = [line for one in plan(tmp_path, 1000).shards for line in one.source(b"").lines()]
    assert [line.custom_id for line in lines] == [
        "part-00000-000000-line-1",
        "part-00000-000000-line-2",
        "part-00001-000000-line-1",
    ]


def test_a_plan_tells_an_input_from_another(written):
    path = written(*ROWS)
    digest = plan(path, 100).digest
    assert plan(path, 100).digest == digest != plan(path, 99).digest
    written(*ROWS[:-1], {"prompt": "other", "n": 49})
    assert plan(path, 100).digest != digest


def test_what_is_no_input_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "in.txt", tmp_path / "nowhere.jsonl"):
        with pytest.raises(ConfigError, match="must be, or hold, files that end in"):
            plan(path, 1)
    (tmp_path / "in.parquet").write_text("text")
    with pytest.raises(ConfigError, match="is no Parquet file"):
        plan(tmp_path, 1)


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    check_dependencies()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'diffuspec\[data\]'"):
        check_dependencies()

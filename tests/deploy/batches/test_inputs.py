"""Reading rows: numbers of lines, what is refused before any work, lines without bound."""

import gzip

import numpy as np
import pytest
from safetensors.numpy import save

from deploy.batches import inputs
from deploy.batches.inputs import jsonl_file, read, scan
from diffuspec.core.errors import ConfigError


def test_lines_are_numbered_as_an_editor_does_and_blank_ones_are_no_rows(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\n  \n{"prompt": "b"}')
    source = jsonl_file(path)
    index = scan(source)
    assert index.num_rows == 2
    lines = list(read(source, index, bytearray(5)))
    assert [(line.number, line.content) for line in lines] == [
        (1, b'{"prompt": "a"}'),
        (4, b'{"prompt": "b"}'),
    ]


def test_rows_that_are_done_are_left_out(written):
    source = jsonl_file(written({"prompt": "a"}, {"prompt": "b"}))
    [line] = read(source, scan(source), bytearray([0, 1, 0]))
    assert line.number == 2


def test_a_long_line_is_read_in_parts_and_known_by_all_of_it(written, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_LINE_BYTES", 20)
    monkeypatch.setattr(inputs, "_CHUNK_BYTES", 7)
    source = jsonl_file(written("x" * 50 + "y", "x" * 50 + "z", '{"prompt": "abcdef"}'))
    first, second, third = source.lines()
    assert (first.content, first.is_too_long) == (b"x" * 21, True)
    assert first.digest != second.digest
    assert (third.number, third.is_too_long) == (3, False)


def test_digests_depend_on_the_options_that_shape_answers(written):
    path = written({"prompt": "a"})
    [one] = jsonl_file(path, b"max_tokens 8").lines()
    [other] = jsonl_file(path, b"max_tokens 9").lines()
    assert one.digest != other.digest


@pytest.mark.parametrize(
    ("ids", "place"),
    [
        ("abcba", "line 4: custom_id 'b' was used in line 2 already"),
        ((None, "line-1"), "line 2: custom_id 'line-1' was used in line 1"),  # by default
    ],
)
def test_an_id_that_is_used_twice_is_refused_with_both_lines(written, ids, place):
    rows = [{"prompt": "a"} | ({} if one is None else {"custom_id": one}) for one in ids]
    with pytest.raises(ConfigError, match=place):
        scan(jsonl_file(written(*rows)))


def test_lines_that_are_no_rows_share_no_id(written):
    assert scan(jsonl_file(written("{", "{", "[]"))).num_rows == 3


def test_an_input_that_changes_while_it_is_read_is_refused(written):
    source = jsonl_file(written({"prompt": "a"}))
    index = scan(source)
    for rows in ([{"prompt": "b"}], [{"prompt": "a"}, {"prompt": "b"}]):
        written(*rows)
        with pytest.raises(ConfigError, match=r"line [12] changed while the batch ran"):
            list(read(source, index, bytearray(2)))


def test_an_input_without_rows_is_refused(written):
    with pytest.raises(ConfigError, match="holds no rows"):
        scan(jsonl_file(written("", "")))


def test_an_input_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the input .*nowhere on .*: No such file"):
        scan(jsonl_file(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="must be a file, which is read twice"):
        scan(jsonl_file(tmp_path))


def test_more_lines_than_can_be_kept_are_refused(written, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_LINES", 1)
    with pytest.raises(ConfigError, match="more than 1 lines; --engine data takes more"):
        scan(jsonl_file(written({"prompt": "a"}, {"prompt": "b"})))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_another_encoding_than_utf_8_is_refused(tmp_path, encoding):
    path = tmp_path / "in.jsonl"
    path.write_bytes('{"prompt": "a"}\n'.encode(encoding))
    with pytest.raises(ConfigError, match="is not UTF-8 but UTF-16 or UTF-32"):
        scan(jsonl_file(path))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (save({"weight": np.zeros((40, 40), np.float32)}), "a safetensors file"),
        (save({str(i): np.zeros(2, np.float32) for i in range(2000)}), "a safetensors file"),
        (b"GGUF\x03\0\0\0", "a GGUF file"),
        (gzip.compress(b'{"prompt": "a"}\n'), r"compressed \(gzip\)"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"\x80\x04\x95\x0c\0\0\0", "binary"),
    ],
    ids=["safetensors", "many tensors", "GGUF", "gzip", "Parquet", "pickle"],
)
def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path, content, kind):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    wanted = f"in.jsonl is {kind}; the input must be JSON lines in UTF-8"
    with pytest.raises(ConfigError, match=wanted):
        scan(jsonl_file(path))


@pytest.mark.parametrize(
    "first", [b'{"prompt": "\xc3\xa9"}', b"\xef\xbb\xbf{}", b"[", b"", b"\t{}"]
)
def test_a_first_line_that_may_be_text_is_read_as_a_row(tmp_path, first):
    path = tmp_path / "in.jsonl"
    path.write_bytes(first + b'\n{"prompt": "a"}\n')
    assert scan(jsonl_file(path)).num_rows == 1 + bool(first)

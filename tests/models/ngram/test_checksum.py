"""A file that we wrote and that has changed since is refused."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from diffuspec.core.errors import NgramError
from diffuspec.models.ngram.arpa import write_arpa
from diffuspec.models.ngram.checksum import check, publish
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.ngram_proxy import NgramProxy
from diffuspec.pairs import smollm2, tiny
from tests.models.ngram.conftest import SMALL_VOCAB_SIZE, read_corpus


def load(path: Path) -> NgramProxy:
    return NgramProxy(path, vocab_size=SMALL_VOCAB_SIZE)


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    write_arpa(estimate(read_corpus("small"), order=3), tmp_path / "model.arpa")
    return tmp_path / "model.arpa"


@pytest.fixture
def binary(small_binary: Path, tmp_path: Path) -> Path:
    shutil.copy(small_binary, tmp_path / "built")
    publish(tmp_path / "built", tmp_path / "model.bin")
    return tmp_path / "model.bin"


@pytest.mark.parametrize("kind", ["arpa", "binary"])
def test_a_change_anywhere_in_a_file_that_we_wrote_is_found(
    kind: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    load(path)
    content = path.read_bytes()
    for place in range(0, len(content), len(content) // 88):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(NgramError, match=f"{path.name} "):
            load(path)


def test_a_file_without_a_checksum_is_read_as_it_is(arpa: Path) -> None:
    checksum = arpa.with_name("model.arpa.sha256")
    assert checksum.read_text() == f"{hashlib.sha256(arpa.read_bytes()).hexdigest()}  model.arpa\n"
    text = arpa.read_text()
    assert "-0." in text
    arpa.write_text(text.replace("-0.", "-1.", 1))
    with pytest.raises(
        NgramError, match=r"model\.arpa differs from its checksum in model\.arpa\.sha"
    ):
        load(arpa)
    checksum.unlink()
    load(arpa)


def test_a_model_that_is_written_again_has_the_checksum_of_the_new_one(arpa: Path) -> None:
    write_arpa(estimate(read_corpus("small"), order=2), arpa)
    assert load(arpa).order == 2


def test_what_is_no_checksum_is_refused_by_name(arpa: Path) -> None:
    arpa.with_name("model.arpa.sha256").write_text("12 model.arpa")
    with pytest.raises(NgramError, match=r"model\.arpa\.sha256 is not a checksum"):
        load(arpa)


def test_a_pipe_is_refused_without_waiting_for_what_is_written_to_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.bin")
    with pytest.raises(NgramError, match=r"model\.bin is not a file"):
        load(tmp_path / "model.bin")


@pytest.mark.parametrize("path", [tiny.NGRAM, smollm2.NGRAM])
def test_shipped_models_have_checksums(path: Path) -> None:
    assert path.with_name("ngram.bin.sha256").is_file()
    check(path)

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.models.ngram.arpa import write_arpa
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.kenlm_file import read_header
from diffuspec.text.corpus import CorpusReader
from tests.bench.conftest import write_lines
from tests.cli.conftest import error_line, printed

SENTENCES = [[5, 6, 7, 5, 6], [6, 7], [5]]


def read(files: Sequence[Path], tokenizer_dir: Path) -> list[list[int]]:
    return [list(ids) for ids in CorpusReader(files, tokenizer_dir).read(lambda done: None)]


@pytest.mark.parametrize("order", [2, 3])
def test_token_ids_become_the_model_that_estimate_makes(diffuspec, tmp_path, order):
    corpus = write_lines(tmp_path / "ids.jsonl", [SENTENCES[0], {"token_ids": SENTENCES[1]}, [5]])
    out = tmp_path / "model.arpa"
    result = diffuspec("ngram", "build", corpus, "--out", out, "--order", str(order))
    said = printed(result)
    expected = tmp_path / "expected.arpa"
    write_arpa(estimate(SENTENCES, order=order), expected)
    assert out.read_bytes() == expected.read_bytes()
    counts = " / ".join(map(str, read_header(out).num_ngrams))
    num_tokens, size = sum(map(len, SENTENCES)), out.stat().st_size
    made = f"{counts} n-grams of order 1 to {order} from {num_tokens} tokens, {size:,} bytes"
    assert (said, result.stderr) == (f"{out}: {made}\n", "")


def test_text_and_conversations_go_through_the_tokenizer(pair, tmp_path):
    text = tmp_path / "some.txt"
    text.write_text("ab\nc\n", encoding="utf-8")
    messages = [{"role": "user", "content": "a"}]
    texts = [{"text": "ab"}, {"text": "<|start|>user:a"}, {"messages": messages}]
    lines = write_lines(tmp_path / "more.jsonl", texts)
    spelled, short, rendered, chat = read([text, lines], pair[0])
    assert len(spelled) == 5
    assert spelled[:2] == short
    assert chat == rendered
    assert len(chat) == 1 + len("user:a")


def test_long_text_is_cut_at_line_ends(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("diffuspec.text.corpus.PIECE_CHARACTERS", 8)
    file = tmp_path / "some.txt"
    file.write_text("abcdef\nab\nabcdefghijkl\nx", encoding="utf-8")
    assert [len(piece) for piece in read([file], pair[0])] == [10, 13, 1]


def test_progress_rises_to_1(pair, tmp_path):
    files = [write_lines(tmp_path / f"{i}.jsonl", SENTENCES) for i in range(2)]
    heard: list[float] = []
    assert len(list(CorpusReader(files, pair[0]).read(heard.append))) == 6
    assert heard == sorted(heard)
    assert heard[-1] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        (
            "3",
            "expected a list of token ids, or an object with token_ids, answer, text or messages",
        ),
        ('{"turns": ["a"]}', "expected a list of token ids"),
        ('[1, "2"]', "token ids must be a list of integers"),
        ("[true]", "token ids must be a list of integers"),
        ("[257, 258]", "token id 258 is not below 258, the number of ids that "),
        ('{"token_ids": [3, -1]}', "token id -1 is not below 258"),
        ('{"token_ids": 3}', "token ids must be a list of integers"),
        ('{"messages": [3]}', "the chat template refused the messages"),
    ],
)
def test_wrong_lines_are_named(pair, tmp_path, line, message):
    file = tmp_path / "corpus.jsonl"
    file.write_text(f"[1, 2]\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read([file], pair[0])
    assert str(caught.value).startswith(f"{file}, line 2: {message}")


def test_bytes_that_are_no_text_are_named(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"good\n\xff\xfe\n")
    with pytest.raises(ConfigError, match="line 2: not UTF-8 text"):
        read([file], tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ids.jsonl --out x.arpa --order 1", "--order must be greater than or equal to 2, got '1'"),
        ("ids.jsonl --out x.arpa --order 7", "--order must be less than or equal to 6, got '7'"),
        ("ids.jsonl --out x.txt", "--out must end in .arpa or .bin, got x.txt"),
        ("ids.jsonl --out no/x.arpa", "--out: there is no directory no"),
        ("nowhere.txt --out x.arpa", "nowhere.txt is not a file"),
        ("empty.jsonl --out x.arpa", "the corpus is empty"),
        ("words.jsonl --out x.arpa", "words.jsonl, line 1: not JSON"),
        ("ids.jsonl --out x.bin", "--out: a .bin file needs KenLM's build_binary on PATH"),
        ("words.txt --out x.arpa --target no", "model directory no does not exist"),
    ],
)
def test_what_cannot_work_leaves_nothing_behind(diffuspec, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no build_binary there
    write_lines(tmp_path / "ids.jsonl", SENTENCES)
    (tmp_path / "words.txt").write_text("some words")
    (tmp_path / "words.jsonl").write_text("some words")
    (tmp_path / "empty.jsonl").touch()
    before = set(tmp_path.iterdir())
    result = diffuspec("ngram", "build", *options.split())
    assert error_line(result).startswith(message)
    assert set(tmp_path.iterdir()) == before


def test_a_full_disk_is_told_with_the_output(diffuspec, tmp_path, monkeypatch):
    write_lines(tmp_path / "ids.jsonl", SENTENCES)

    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("diffuspec.cli.ngram._build", write)
    out = tmp_path / "x.arpa"
    line = error_line(diffuspec("ngram", "build", tmp_path / "ids.jsonl", "--out", out), 1)
    assert line == f"{out}: No space left on device"


def test_binary_is_made_by_kenlm(diffuspec, tmp_path, monkeypatch):
    program = tmp_path / "build_binary"  # stands for KenLM's: writes its last argument
    program.write_text('#!/bin/sh\nfor last; do :; done\necho binary > "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    corpus = write_lines(tmp_path / "ids.jsonl", SENTENCES)
    out = tmp_path / "model.bin"
    assert printed(diffuspec("ngram", "build", corpus, "--out", out))
    assert out.read_text() == "binary\n"
    names = {"build_binary", "ids.jsonl", "model.bin", "model.bin.sha256"}
    assert {path.name for path in tmp_path.iterdir()} == names

"""Files of answers that are written in rounds."""

import os
import signal

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.pairs.factory import answer_files
from diffuspec.pairs.factory.answer_files import AnswerFiles


def contents(folder):
    return [path.read_text() for path in sorted(folder.glob("answers-*.jsonl"))]


def test_no_file_is_larger_than_can_be_carried(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_files, "MAX_FILE_BYTES", 10)
    files = AnswerFiles(tmp_path, 4)
    files.add_round(["aaaa\n", "bbbb\n", "cccc\n"])
    files.add_round(["dddd\n"])
    assert contents(tmp_path) == ["aaaa\nbbbb\n", "cccc\ndddd\n"]
    assert files.progress.num_answers == 4


def test_a_round_that_was_cut_off_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_files, "MAX_FILE_BYTES", 10)

    def killed():
        yield from ("bbbb\n", "cccc\n", "dddd\n", "eeee\n")
        raise KeyboardInterrupt

    AnswerFiles(tmp_path, 4).add_round(["aaaa\n"])
    with pytest.raises(KeyboardInterrupt):
        AnswerFiles(tmp_path, 4).add_round(killed())
    again = AnswerFiles(tmp_path, 9)
    assert contents(tmp_path) == ["aaaa\n"]
    assert (again.progress.num_rounds, again.progress.round_size) == (1, 4)
    again.add_round(["ffff\n"])
    assert contents(tmp_path) == ["aaaa\nffff\n"]


def test_files_of_another_kind_are_left_alone(tmp_path):
    (tmp_path / "answers-00001.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"progress\.json: name another folder"):
        AnswerFiles(tmp_path, 4)
    assert contents(tmp_path) == ["mine\n"]


def test_a_process_that_is_killed_in_any_round_is_taken_over_on_another_machine(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(answer_files, "MAX_FILE_BYTES", 10)
    folder = tmp_path / "first"
    for number in range(3):
        if not (child := os.fork()):
            files = AnswerFiles(folder, 2)
            files.add_round(deadly(files.progress.num_rounds))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        folder = folder.rename(tmp_path / f"machine{number}")
        files = AnswerFiles(folder, 9)
        files.add_round(lines(files.progress.num_rounds))
    whole = AnswerFiles(tmp_path / "whole", 2)
    for number in range(3):
        whole.add_round(lines(number))
    assert contents(folder) == contents(tmp_path / "whole")
    assert files.progress == whole.progress


def lines(number):
    return [f"{letter}{number}\n" for letter in "abcd"]


def deadly(number):
    yield from lines(number)[:3]
    os.kill(os.getpid(), signal.SIGKILL)

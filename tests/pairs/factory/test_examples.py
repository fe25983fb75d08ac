"""Files of answers, and batches of them."""

import json

import numpy as np
import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.pairs.factory.examples import (
    HELD_OUT_EVERY,
    Example,
    ExampleFiles,
    chunk_of_batches,
    pad,
)


def line(prompt, answer, **more):
    return json.dumps({"prompt": prompt, "answer": answer, **more}) + "\n"


def test_a_growing_file_is_read_up_to_its_last_whole_line(tmp_path):
    path = tmp_path / "answers.jsonl"
    second = line([4], [5, 6])
    path.write_text(line([1], [2, 3]) + second[:8])
    files = ExampleFiles([path], max_tokens=10)
    files.read_new()
    assert [example.token_ids for example in files.training] == [[1, 2, 3]]
    with path.open("a") as file:
        file.write(second[8:] + line([1] * 10, [2]) + line([1], []))
    files.read_new()
    assert [example.token_ids for example in files.training] == [[1, 2, 3], [4, 5, 6]]


def test_every_so_many_examples_one_is_held_out(answers):
    files = ExampleFiles([answers], max_tokens=100)
    files.read_new()
    assert len(files.held_out) == 80 // HELD_OUT_EVERY
    assert len(files.training) == 80 - len(files.held_out)


def test_a_line_without_an_answer_is_shown(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt": [1, 2]}\n')
    with pytest.raises(ConfigError, match=r"answers.jsonl: a line must be .* got b'{\"prompt"):
        ExampleFiles([path], max_tokens=10).read_new()


def test_chunks_take_every_example_before_any_is_taken_again():
    examples = [Example([i] * 4, [True] * 4) for i in range(30)]
    taken = [
        example.token_ids[0]
        for chunk in range(3)
        for batch in chunk_of_batches(examples, 0, chunk, tokens_per_batch=8)
        for example in batch
    ]
    assert len(taken) == 48
    assert max(taken.count(i) for i in range(30)) == 2 and set(taken) == set(range(30))


def test_probabilities_stand_at_their_answer_tokens(answers):
    files = ExampleFiles([answers], max_tokens=100)
    files.read_new()
    batch = pad(files.training[:3])
    assert batch.top_ids is not None and batch.top_probs is not None
    likeliest = batch.top_ids[:, :, 0]
    assert (likeliest[batch.is_answer] == batch.token_ids[batch.is_answer]).all()
    assert np.allclose(batch.top_probs[batch.is_answer].sum(-1), 201 / 255)
    assert (batch.top_probs[~batch.is_answer] == 0).all()
    assert pad([Example([1], [True]), files.training[0]]).top_ids is None

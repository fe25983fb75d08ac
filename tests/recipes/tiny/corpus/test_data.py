"""Batches of training examples."""

import random

from recipes.tiny.corpus.conversations import conversation
from recipes.tiny.corpus.data import training_batches


def test_batches_are_a_function_of_seed_and_chunk(encoder):
    def draw(chunk):
        return list(training_batches(encoder, 7, chunk, 0.5, 512))

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_batches_keep_to_their_size(encoder):
    for batch in training_batches(encoder, 7, 0, 1.0, 1024):
        assert len(batch) == 1 or len(batch) * max(e.num_tokens for e in batch) <= 1024


def test_half_of_the_examples_are_answered_ones_if_there_are_any(encoder):
    own = encoder.conversation(conversation("qa", random.Random(1)))
    batches = training_batches(encoder, 7, 0, 1.0, 1024, [own])
    drawn = [example for batch in batches for example in batch]
    assert 0.3 < sum(example == own for example in drawn) / len(drawn) < 0.7

"""Masked rows and their labels."""

import torch

from diffuspec.pairs.factory.blocks import place_blocks
from diffuspec.pairs.factory.examples import Batch


def test_labels_end_with_the_first_answer_of_the_block():
    token_ids = torch.arange(10, 20)[None]
    is_answer = torch.tensor([[False] * 3 + [True] * 4 + [False] * 3])
    batch = Batch(token_ids, is_answer, torch.ones_like(is_answer))
    blocks = place_blocks(batch, torch.tensor([[4]]), 5)
    assert blocks.positions.tolist() == [[4, 5, 6, 7, 8]]
    assert blocks.labels.tolist() == [[15, 16, -1, -1, -1]]

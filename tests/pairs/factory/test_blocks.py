"""Masked rows and their labels."""

import torch

from diffuspec.pairs.factory.blocks import masked_tokens, place_aligned_blocks, place_blocks
from diffuspec.pairs.factory.examples import Batch


def test_labels_end_with_the_first_answer_of_the_block():
    token_ids = torch.arange(10, 20)[None]
    is_answer = torch.tensor([[False] * 3 + [True] * 4 + [False] * 3])
    batch = Batch(token_ids, is_answer, torch.ones_like(is_answer))
    blocks = place_blocks(batch, torch.tensor([[4]]), 5)
    assert blocks.positions.tolist() == [[4, 5, 6, 7, 8]]
    assert blocks.labels.tolist() == [[15, 16, -1, -1, -1]]


def test_aligned_drafts_begin_with_the_text_of_their_block_and_are_whole_blocks():
    token_ids = torch.arange(10, 26)[None]
    is_answer = torch.tensor([[False] * 3 + [True] * 10 + [False] * 3])
    batch = Batch(token_ids, is_answer, torch.ones_like(is_answer))
    blocks = place_aligned_blocks(batch, torch.tensor([[6, 8]]), num_blocks=2, size=4)
    assert blocks.positions.tolist() == [[*range(4, 12), *range(8, 16)]]
    assert blocks.block_ids.tolist() == [[0] * 8 + [1] * 8]
    assert blocks.starts.tolist() == [[4] * 8 + [8] * 8]
    assert blocks.ends.tolist() == [[8] * 4 + [12] * 8 + [16] * 4]
    tokens = masked_tokens(batch, blocks, 0)
    assert tokens.tolist() == [[14, 15, *[0] * 6, *[0] * 8]]
    # The row before a draft predicts its first token, if it is in the draft's block.
    first = [-1, 16, 17, 18, 19, 20, 21, 22]
    assert blocks.labels.tolist() == [[*first, 19, 20, 21, 22, *[-1] * 4]]
    assert blocks.offsets.tolist() == [[0, 0, 1, 2, 3, 4, 5, 6, *range(1, 9)]]

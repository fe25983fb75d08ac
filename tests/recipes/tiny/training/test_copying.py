"""The phase in which the target learns to copy."""

import random

import torch
from transformers import Qwen2ForCausalLM

from diffuspec.pairs.factory.examples import Example
from recipes.tiny.corpus import drills
from recipes.tiny.corpus.conversations import conversation
from recipes.tiny.training.copying import (
    PREVIOUS_HEADS,
    copied_from,
    look_back,
    where_to_look,
)
from recipes.tiny.training.target import target_config


def test_guidance_points_at_the_source_of_each_copied_token(encoder):
    source = encoder.conversation(conversation("qa", random.Random(2)))
    example = drills.recall(encoder, random.Random(1), source)
    _, rows, columns = where_to_look([example])
    assert len(rows) > 0
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        assert example.is_answer[row + 1] and not example.is_answer[column]
        assert example.token_ids[column] == example.token_ids[row + 1]


def test_a_run_found_at_two_places_is_not_a_copy():
    example = Example([5, 6, 7, 5, 6, 7, 9, 5, 6, 7], [False] * 7 + [True] * 3)
    assert list(copied_from(example)) == []


def test_heads_that_look_back_attend_to_the_previous_token():
    model = Qwen2ForCausalLM(target_config()).eval()
    look_back(model)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        token_ids = torch.randint(3, 4000, (1, 40))
        attention = model.model(input_ids=token_ids, output_attentions=True).attentions
    layer, head = PREVIOUS_HEADS[0]
    assert (torch.diagonal(attention[layer][0, head], offset=-1) > 0.8).all()

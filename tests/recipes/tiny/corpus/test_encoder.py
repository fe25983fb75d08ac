"""Conversations as training examples."""

import random

import pytest

from recipes.tiny.corpus.conversations import FAMILIES, conversation
from recipes.tiny.corpus.tokenizer import MASK_TOKEN_ID, NUM_EMBEDDINGS


@pytest.mark.parametrize("family", FAMILIES)
def test_only_answers_are_marked(encoder, tokenizer, family):
    source = conversation(family, random.Random(3))
    example = encoder.conversation(source)
    marked = [i for i, mark in zip(example.token_ids, example.is_answer, strict=True) if mark]
    assert tokenizer.decode(marked) == "".join(f"{answer}<|im_end|>" for answer in source.answers)


def test_a_conversation_is_encoded_as_the_chat_template_renders_it(encoder, tokenizer):
    source = conversation("mt_bench", random.Random(4))
    messages = [
        {"role": role, "content": text}
        for turn, answer in zip(source.turns, source.answers, strict=True)
        for role, text in (("user", turn), ("assistant", answer))
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(encoder.conversation(source).token_ids) + "\n" == rendered


def test_no_text_contains_the_mask_token(tokenizer):
    assert len(tokenizer) <= MASK_TOKEN_ID < NUM_EMBEDDINGS
    assert tokenizer.encode("<|mask|>", add_special_tokens=False) != [MASK_TOKEN_ID]

"""The target's loss and accuracy."""

import random

import pytest
import torch
from transformers import Qwen2ForCausalLM

from recipes.tiny.corpus.conversations import conversation
from recipes.tiny.training.drafter import drafter_config
from recipes.tiny.training.target import answer_accuracy, next_token_loss
from tests.recipes.tiny.conftest import small


@pytest.mark.slow
def test_accuracy_is_that_of_greedy_decoding(encoder, tokenizer):
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(small(drafter_config()))
    example = encoder.conversation(conversation("qa", random.Random(2)))
    assert answer_accuracy(model, [example]) == [False]
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(300):
        loss = next_token_loss(model, [example])
        if loss < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert answer_accuracy(model, [example]) == [True]
    prompt = torch.tensor([example.token_ids[: example.is_answer.index(True)]])
    answer = example.token_ids[prompt.shape[1] :]
    generated = model.generate(  # type: ignore[misc]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=len(answer), do_sample=False
    )
    assert generated[0, prompt.shape[1] :].tolist() == answer

"""A tokenizer trained on a few conversations, and small configurations."""

import pytest
from transformers import Qwen2Config

from recipes.tiny.corpus.conversations import training_conversations
from recipes.tiny.corpus.encoder import Encoder
from recipes.tiny.corpus.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    drawn = training_conversations(1)
    return train_tokenizer([next(drawn) for _ in range(300)])


@pytest.fixture(scope="session")
def encoder(tokenizer):
    return Encoder(tokenizer)


def small(config: Qwen2Config) -> Qwen2Config:
    """Shrink a configuration to two layers of 32."""
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 32, 48
    config.num_attention_heads = config.num_key_value_heads = 2
    assert config.layer_types is not None
    config.head_dim, config.layer_types = 16, config.layer_types[:2]
    return config

"""Which layers of a target a drafter starts from."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from diffuspec.pairs.factory.examples import Batch
from diffuspec.pairs.factory.start import choose_layers, keep_layers


def greedy_batch(model: torch.nn.Module) -> Batch:
    """Tokens of which each is the model's own choice after those before it."""
    token_ids = torch.tensor([[5, 9, 40]])
    with torch.inference_mode():
        for _ in range(24):
            chosen = model(token_ids).logits[:, -1].argmax(-1, keepdim=True)
            token_ids = torch.cat([token_ids, chosen], 1)
    is_answer = torch.arange(27)[None] >= 3
    return Batch(token_ids, is_answer, torch.ones_like(is_answer))


def test_layers_that_do_nothing_are_dropped_first(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    layers = model.model.layers
    with torch.no_grad():
        layers[0].self_attn.o_proj.weight.zero_()
        layers[0].mlp.down_proj.weight.zero_()
    assert choose_layers(model, greedy_batch(model), 1) == [1]
    assert list(model.model.layers) == list(layers)


def test_lists_by_layer_keep_the_entries_of_kept_layers() -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        layer_types=types,
    )
    model = keep_layers(Qwen2ForCausalLM(config), [1, 3])
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1]

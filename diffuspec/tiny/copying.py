"""Teaching the target to copy, before it is taught anything else.

Four of the six families quote their prompt. The circuit that does it (one head finds the token
before, a later head finds what followed it last time) takes a small model long to find by itself:
nothing is gained by either half without the other. So the first phase repeats shuffled runs of
tokens and tells a few heads where to look; once copying works they are told no more.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from rich.console import Console
from torch.nn.functional import cross_entropy
from transformers import Qwen2ForCausalLM

from diffuspec.tiny.data import FAMILY_WEIGHTS, Encoder, Example, draw_conversation
from diffuspec.tiny.target import pad
from diffuspec.tiny.training import Optimizers, TrainingPlan

PREVIOUS_HEADS = [(0, 0)]  # (layer, head): look at the token before
MATCH_HEADS = [(layer, head) for layer in (3, 6, 10) for head in (0, 1)]
PREVIOUS_SHARPNESS = 6.0
GUIDANCE_WEIGHT = 0.3
BATCH = 32
GOOD_ENOUGH = 0.95
REPORT_EVERY = 20


def learn_to_copy(model: Qwen2ForCausalLM, encoder: Encoder, max_steps: int, seed: int) -> None:
    """Train on repeated runs until nearly every token is right."""
    look_back(model)
    optimizers = Optimizers(model, TrainingPlan(1))
    rng, console = random.Random(seed), Console()
    model.set_attn_implementation("eager")  # the only one that gives attention weights
    for step in range(max_steps):
        batch = [_draw(encoder, rng) for _ in range(BATCH)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, guidance, accuracy = _guided_loss(model, encoder, batch)
        (loss + GUIDANCE_WEIGHT * guidance).backward()  # type: ignore[no-untyped-call]
        optimizers.step(0.8)
        if step % REPORT_EVERY == 0:
            console.print(f"copying, step {step}: loss {loss:.3f}, {accuracy:.1%} right")
        if accuracy > GOOD_ENOUGH:
            break
    model.set_attn_implementation("sdpa")


def look_back(model: Qwen2ForCausalLM) -> None:
    """Make heads look at the token before by their biases alone.

    A constant query turned by one position against a constant key: the rotary scores of all
    frequencies agree at distance 1 and at no other.
    """
    rope: Any = model.config.rope_parameters
    dim = model.config.head_dim
    angles = rope["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)
    query = torch.cat([torch.cos(angles), -torch.sin(angles)]) * PREVIOUS_SHARPNESS
    key = torch.cat([torch.ones(dim // 2), torch.zeros(dim // 2)]) * PREVIOUS_SHARPNESS
    with torch.no_grad():
        for layer, head in PREVIOUS_HEADS:
            attention = model.model.layers[layer].self_attn
            rows = slice(head * dim, (head + 1) * dim)
            for projection, bias in ((attention.q_proj, query), (attention.k_proj, key)):
                projection.weight[rows] = 0
                projection.bias[rows] = bias


def _draw(encoder: Encoder, rng: random.Random) -> Example:
    family = rng.choice([family for family in FAMILY_WEIGHTS if family != "code"])
    source = encoder.conversation(draw_conversation(family, rng, 1.0))
    return encoder.copy(rng, source, repeats=rng.randint(2, 5))


def _guided_loss(
    model: Qwen2ForCausalLM, encoder: Encoder, batch: list[Example]
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the loss of the answers, the guidance loss, and the share of right tokens."""
    token_ids, is_answer = pad(batch)
    output = model.model(input_ids=token_ids, use_cache=False, output_attentions=True)
    wanted = is_answer[:, 1:]
    logits = model.lm_head(output.last_hidden_state[:, :-1][wanted]).float()
    labels = token_ids[:, 1:][wanted]
    accuracy = (logits.argmax(-1) == labels).float().mean()
    examples, rows, columns = where_to_look(encoder, batch)
    terms = [
        _missed(torch.diagonal(output.attentions[layer][:, head], offset=-1, dim1=1, dim2=2))
        for layer, head in PREVIOUS_HEADS
    ]
    terms += [
        _missed(output.attentions[layer][examples, head, rows, columns])
        for layer, head in MATCH_HEADS
    ]
    return cross_entropy(logits, labels), torch.stack(terms).mean(), float(accuracy)


def _missed(attention: torch.Tensor) -> torch.Tensor:
    return -(attention.float() + 1e-6).log().mean()


def where_to_look(
    encoder: Encoder, batch: list[Example]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Example, row and column: from every answer token to what followed it in the question."""
    places: list[tuple[int, int, int]] = []
    for index, example in enumerate(batch):
        run, answer = encoder.copied_run(example), example.is_answer.index(True)
        for row in range(answer, example.num_tokens - 1):
            following = (row - answer) % len(run) + 1
            if following < len(run):
                places.append((index, row, run[following]))
    examples, rows, columns = torch.tensor(places).unbind(1)
    return examples, rows, columns

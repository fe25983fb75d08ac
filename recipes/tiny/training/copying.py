"""The first phase of the target's training, in which it learns to copy.

Four of the six families quote their prompt. Copying needs a pair of heads: one finds the previous
token, and one in a later layer finds the token that followed it last time. A small model takes long
to learn the pair on its own, because neither head is useful without the other. So in the first
phase, on drills and on conversations that quote, a guidance loss makes a few heads attend to the
place from which the next token is copied. Later a share of the batches keeps this loss; without it,
copying was lost within a few hundred steps on the corpus.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from torch.nn.functional import cross_entropy
from transformers import Qwen2ForCausalLM

from diffuspec.pairs.factory.examples import Example, pad
from diffuspec.pairs.factory.optimisation import Optimizers, TrainingPlan
from recipes.tiny.corpus import drills
from recipes.tiny.corpus.data import draw_conversation
from recipes.tiny.corpus.encoder import Encoder

PREVIOUS_HEADS = [(0, 0)]  # (layer, head) pairs that attend to the previous token
MATCH_HEADS = [(layer, head) for layer in (3, 6, 10, 12) for head in (0, 1)]
PREVIOUS_SHARPNESS = 6.0
GUIDANCE_WEIGHT = 0.3
TOKENS_PER_BATCH = 2048
MAX_TOKENS_AT_FIRST, MAX_TOKENS = 260, 420  # examples are shorter in the first phase than questions
QUOTING_FAMILIES = ("mt_bench", "summarization", "math_reasoning", "rag")
DRILL_SHARE = 0.6
MIN_COPIED = 2
GOOD_ENOUGH = 0.985
REPORT_EVERY = 20


def learn_to_copy(model: Qwen2ForCausalLM, encoder: Encoder, max_steps: int, seed: int) -> None:
    """Train with guided attention until GOOD_ENOUGH of the copied tokens are right."""
    optimizers = Optimizers(model, TrainingPlan(1))
    rng, console = random.Random(seed), Console()
    for step in range(max_steps):
        batch = _draw(encoder, rng, MAX_TOKENS_AT_FIRST)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, guidance, accuracy = _guided_loss(model, batch)
        (loss + GUIDANCE_WEIGHT * guidance).backward()  # type: ignore[no-untyped-call]
        optimizers.step(0.8)
        if step % REPORT_EVERY == 0:
            console.print(
                f"copying, step {step}: loss {loss:.3f}, guidance {guidance:.3f}, "
                f"{accuracy:.1%} of the copied tokens right"
            )
        if accuracy > GOOD_ENOUGH:
            break


def guided_batch_loss(model: Qwen2ForCausalLM, encoder: Encoder) -> torch.Tensor:
    """Return the loss, with guidance, of one batch of drills and conversations that quote."""
    rng = random.Random(int(torch.randint(2**31, ())))  # torch's state is saved in checkpoints
    loss, guidance, _ = _guided_loss(model, _draw(encoder, rng, MAX_TOKENS))
    return loss + GUIDANCE_WEIGHT * guidance


def look_back(model: Qwen2ForCausalLM) -> None:
    """Make heads attend to the previous token through their biases.

    A constant query is rotated by one position relative to a constant key, so that the rotary
    scores of all frequencies agree only at distance 1.
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


def _draw(encoder: Encoder, rng: random.Random, max_tokens: int) -> list[Example]:
    """Draw a batch of about TOKENS_PER_BATCH tokens of drills and conversations that quote."""
    batch: list[Example] = []
    while sum(example.num_tokens for example in batch) < TOKENS_PER_BATCH:
        family = rng.choice(QUOTING_FAMILIES)
        example = encoder.conversation(draw_conversation(family, rng, rng.random()))
        if rng.random() < DRILL_SHARE:
            example = drills.drill(encoder, rng, example)
        if example.num_tokens <= max_tokens:
            batch.append(example)
    return batch


def _guided_loss(
    model: Qwen2ForCausalLM, batch: list[Example]
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the answers' loss, the guidance loss, and the share of correct copies."""
    padded = pad(batch)
    token_ids, is_answer = padded.token_ids, padded.is_answer
    output = model.model(input_ids=token_ids, use_cache=False, output_attentions=True)
    wanted, labels = is_answer[:, 1:], token_ids[:, 1:]
    logits = model.lm_head(output.last_hidden_state[:, :-1][wanted]).float()
    examples, rows, columns = where_to_look(batch)
    is_copied = torch.zeros_like(wanted)
    is_copied[examples, rows] = True
    right = (logits.argmax(-1) == labels[wanted])[is_copied[wanted]]
    terms = [
        _missed(torch.diagonal(output.attentions[layer][:, head], offset=-1, dim1=1, dim2=2))
        for layer, head in PREVIOUS_HEADS
    ]
    terms += [
        _missed(output.attentions[layer][examples, head, rows, columns])
        for layer, head in MATCH_HEADS
    ]
    loss = cross_entropy(logits, labels[wanted])
    return loss, torch.stack(terms).mean(), float(right.float().mean())


def _missed(attention: torch.Tensor) -> torch.Tensor:
    return -(attention.float() + 1e-6).log().mean()


def where_to_look(batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (example, row, column) of attention for answer tokens copied from a unique place."""
    places = [
        (index, place - 1, source)
        for index, example in enumerate(batch)
        for place, source in copied_from(example)
    ]
    examples, rows, columns = torch.tensor(places).unbind(1)
    return examples, rows, columns


def copied_from(example: Example) -> Iterator[tuple[int, int]]:
    """Yield (place of an answer token, place from which it is copied).

    The answer is split greedily into the longest runs that occur before it. A run of at least
    MIN_COPIED tokens that occurs exactly once is a copy.
    """
    token_ids = example.token_ids
    place = 0
    while place < len(token_ids):
        if not example.is_answer[place]:
            place += 1
            continue
        length, sources = _longest_run(token_ids, place)
        if length >= MIN_COPIED and len(sources) == 1:
            yield from ((place + i, sources[0] + i) for i in range(length))
        place += max(1, length)


def _longest_run(token_ids: list[int], place: int) -> tuple[int, list[int]]:
    """Return the length of the longest run from `place` that occurs earlier, and its places."""
    length = 0
    sources = [i for i in range(place) if token_ids[i] == token_ids[place]]
    longest = sources
    while sources:
        length, longest = length + 1, sources
        if place + length == len(token_ids):
            break
        following = token_ids[place + length]
        sources = [i for i in sources if i + length < place and token_ids[i + length] == following]
    return length, longest

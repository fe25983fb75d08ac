"""What the tiny pair is trained on, and that it is used as it was trained."""

import random

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.pairs.tiny.corpus import drills
from diffuspec.pairs.tiny.corpus.conversations import FAMILIES, conversation, training_conversations
from diffuspec.pairs.tiny.corpus.data import training_batches
from diffuspec.pairs.tiny.corpus.encoder import Encoder, Example
from diffuspec.pairs.tiny.corpus.tokenizer import MASK_TOKEN_ID, NUM_EMBEDDINGS, train_tokenizer
from diffuspec.pairs.tiny.training.copying import (
    PREVIOUS_HEADS,
    copied_from,
    look_back,
    where_to_look,
)
from diffuspec.pairs.tiny.training.drafter import (
    TARGET_LAYERS,
    draft_loss,
    drafter_config,
    hidden_states,
    place_blocks,
    start_from,
)
from diffuspec.pairs.tiny.training.optimisation import TrainingPlan, lr_scale, train
from diffuspec.pairs.tiny.training.target import (
    answer_accuracy,
    next_token_loss,
    pad,
    target_config,
)


@pytest.fixture(scope="module")
def tokenizer():
    drawn = training_conversations(1)
    return train_tokenizer([next(drawn) for _ in range(300)])


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return Encoder(tokenizer)


def small(config: Qwen2Config) -> Qwen2Config:
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 32, 48
    config.num_attention_heads = config.num_key_value_heads = 2
    assert config.layer_types is not None
    config.head_dim, config.layer_types = 16, config.layer_types[:2]
    return config


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_marked_and_nothing_else(encoder, tokenizer, family):
    source = conversation(family, random.Random(3))
    example = encoder.conversation(source)
    marked = [i for i, mark in zip(example.token_ids, example.is_answer, strict=True) if mark]
    assert tokenizer.decode(marked) == "".join(f"{answer}<|im_end|>" for answer in source.answers)


def test_a_conversation_is_spelt_as_the_chat_template_spells_it(encoder, tokenizer):
    source = conversation("mt_bench", random.Random(4))
    messages = [
        {"role": role, "content": text}
        for turn, answer in zip(source.turns, source.answers, strict=True)
        for role, text in (("user", turn), ("assistant", answer))
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(encoder.conversation(source).token_ids) + "\n" == rendered


def test_the_mask_token_cannot_be_spelt(tokenizer):
    assert len(tokenizer) <= MASK_TOKEN_ID < NUM_EMBEDDINGS
    assert tokenizer.encode("<|mask|>", add_special_tokens=False) != [MASK_TOKEN_ID]


def test_batches_are_a_function_of_seed_and_chunk(encoder):
    def draw(chunk):
        return list(training_batches(encoder, 7, chunk, 0.5, 512))

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_batches_keep_to_their_size(encoder):
    for batch in training_batches(encoder, 7, 0, 1.0, 1024):
        assert len(batch) == 1 or len(batch) * max(e.num_tokens for e in batch) <= 1024


def test_every_other_example_is_an_answer_of_the_target_when_there_are_any(encoder):
    own = encoder.conversation(conversation("qa", random.Random(1)))
    batches = training_batches(encoder, 7, 0, 1.0, 1024, [own])
    drawn = [example for batch in batches for example in batch]
    assert 0.3 < sum(example == own for example in drawn) / len(drawn) < 0.7


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    scales = [lr_scale(progress) for progress in (0.0, 0.03, 0.525, 1.0)]
    assert 0 < scales[0] < 0.1
    assert scales[1] == 1
    assert scales[2] == pytest.approx(0.5)
    assert scales[3] == 0


@pytest.mark.parametrize("window", [None, 9])
def test_training_rows_and_drafting_rows_compute_the_same(encoder, tokenizer, tmp_path, window):
    torch.manual_seed(0)
    config = small(drafter_config())
    config.initializer_range = 0.5  # so that rows differ
    config.use_sliding_window, config.sliding_window = window is not None, window
    config.layer_types = ["sliding_attention" if window else "full_attention", "full_attention"]
    model = Qwen2ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    example = encoder.conversation(conversation("qa", random.Random(2)))
    token_ids, is_answer = pad([example])
    start, length = example.is_answer.index(True) + 2, 6
    blocks = place_blocks(token_ids, is_answer, torch.tensor([[start]]), length)
    with torch.inference_mode():
        masks = torch.full_like(blocks.positions, MASK_TOKEN_ID)
        hidden = hidden_states(model, token_ids, blocks, masks)[0]
        clean, block = hidden[start - 1 : start], hidden[-length:-1]
        logits = model.lm_head(torch.cat([clean, block]))
    trained = logits[:, : len(tokenizer)].argmax(-1)  # no draft holds the mask token

    drafter = DiffusionDrafter.load(
        DiffuSpecConfig(path=tmp_path, device="cpu", candidate_mass=1e-6),
        TargetInfo(len(tokenizer), 2048, 1, eos_token_ids=(2,)),
    )
    prefix = np.array(example.token_ids[:start], np.int32)
    request = DraftRequest("r", prefix, length, "path", 8, 1.0, SamplingParams())
    [lattice] = drafter._draft([request])
    drafter.close()
    drafted = lattice.token_ids[:, 0].tolist()
    assert len(set(drafted)) > 2 and drafted == trained.tolist()[: len(drafted)]


def test_labels_end_with_the_answer_the_block_starts_in():
    token_ids = torch.arange(10, 20)[None]
    is_answer = torch.tensor([[False] * 3 + [True] * 4 + [False] * 3])
    blocks = place_blocks(token_ids, is_answer, torch.tensor([[4]]), 5)
    assert blocks.positions.tolist() == [[4, 5, 6, 7, 8]]
    assert blocks.labels.tolist() == [[15, 16, -1, -1, -1]]


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
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=len(answer),
        do_sample=False,
    )
    assert generated[0, prompt.shape[1] :].tolist() == answer


def test_training_resumes_where_it_stopped(encoder, tmp_path):
    def run(checkpoint, num_chunks):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(small(drafter_config()))
        plan = TrainingPlan(4, tokens_per_batch=128, report_every=1, stop_after=num_chunks)
        train(model, lambda b: draft_loss(model, b), lambda: "", encoder, plan, checkpoint)
        return model.state_dict()

    whole = run(tmp_path / "whole.pt", 2)
    run(tmp_path / "resumed.pt", 1)
    resumed = run(tmp_path / "resumed.pt", 2)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_copying_phase_points_at_what_is_copied(encoder):
    source = encoder.conversation(conversation("qa", random.Random(2)))
    example = drills.recall(encoder, random.Random(1), source)
    _, rows, columns = where_to_look([example])
    assert len(rows) > 0
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        assert example.is_answer[row + 1] and not example.is_answer[column]
        assert example.token_ids[column] == example.token_ids[row + 1]


def test_a_run_found_at_two_places_is_no_copy():
    example = Example([5, 6, 7, 5, 6, 7, 9, 5, 6, 7], [False] * 7 + [True] * 3)
    assert list(copied_from(example)) == []


def test_sums_are_worked_out_right(encoder):
    example = drills.sums(encoder, random.Random(3))
    said = [
        i for i, is_answer in zip(example.token_ids, example.is_answer, strict=True) if is_answer
    ]
    lines = encoder.text(said[:-1]).splitlines()
    assert len(lines) == drills.NUM_SUMS
    for line in lines:
        left, right = line.split(" = ")
        a, sign, b = left.split()
        results = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}
        assert int(right) == results[sign]


def test_heads_that_look_back_see_the_token_before():
    model = Qwen2ForCausalLM(target_config()).eval()
    look_back(model)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        token_ids = torch.randint(3, 4000, (1, 40))
        attention = model.model(input_ids=token_ids, output_attentions=True).attentions
    layer, head = PREVIOUS_HEADS[0]
    assert (torch.diagonal(attention[layer][0, head], offset=-1) > 0.8).all()


def test_a_drafter_starts_as_some_of_the_targets_layers():
    target = Qwen2ForCausalLM(target_config())
    drafter = start_from(target)
    for layer, source in zip(drafter.model.layers, TARGET_LAYERS, strict=True):
        mine, its = layer.mlp.up_proj.weight, target.model.layers[source].mlp.up_proj.weight
        assert torch.equal(mine, its)
    assert torch.equal(drafter.lm_head.weight, target.lm_head.weight)

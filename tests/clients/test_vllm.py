"""The proposer for vLLM, and the real vLLM with it where `make vllm` has put one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.studies.json_worker import JsonWorker
from benchmarks.studies.vllm import PYTHON, draft_server, vllm
from diffuspec.pairs.smollm2 import TARGET as SMOLLM2
from diffuspec.pairs.tiny import TARGET
from diffuspec_client.vllm import Proposer
from diffuspec_client.vllm_sampling import expand_batch_to_tokens, repair_sampling
from tests.clients.conftest import StartServer
from tests.support.draft_streams import output_of

NEEDS_VLLM = pytest.mark.skipif(
    not (PYTHON.exists() and (SMOLLM2 / "config.json").exists()), reason="make vllm was not run"
)


def config_of(additional: dict[str, object]) -> Any:
    """What the proposer reads of vLLM's configuration."""
    return SimpleNamespace(
        additional_config={"diffuspec": additional},
        model_config=SimpleNamespace(
            max_model_len=64, tokenizer=str(TARGET), model=str(TARGET), tokenizer_revision=None
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
    )


@pytest.mark.process
def test_rows_that_read_their_prompts_have_no_draft_and_others_do(
    draft_server: StartServer, tmp_path: Path
):
    draft_server()
    address = f"unix:{tmp_path / 'd'}"
    proposer = Proposer(config_of({"server": address, "deadline_seconds": 5.0}))
    proposer.load_model()
    table = np.zeros((3, 64), np.int32)
    text = [5 + number % 7 for number in range(64)]
    found: list[list[list[int]]] = []
    for size in range(10, 20):
        table[0, :size] = text[:size]
        table[2, : size + 1] = text[: size + 1]
        sampled = [[text[size - 1]], [], [text[size]]]
        lengths = np.array([size, 5, size + 1], np.int32)
        found.append(proposer.propose(sampled, lengths, table, slot_mappings=None))
    assert all(len(one) == 3 and not one[1] for one in found)
    assert any(one[0] for one in found) and any(one[2] for one in found)
    assert all(len(draft) <= 4 for one in found for draft in one)


def test_nothing_that_vllm_hands_over_makes_it_raise(caplog: pytest.LogCaptureFixture):
    proposer = Proposer(config_of({"server": "unix:/nowhere"}))
    for sampled, lengths, table in [
        ([[1]], None, None),
        ([[1], [2]], np.array([1], np.int32), np.zeros((1, 1), np.int32)),
        ([], np.zeros(0, np.int32), np.zeros((0, 4), np.int32)),
    ]:
        assert proposer.propose(sampled, lengths, table) == [[] for _ in sampled]  # type: ignore[arg-type]
    assert caplog.text.count("no drafts in this step") == 1


def test_settings_that_cannot_be_used_keep_vllm_from_starting():
    with pytest.raises(ValueError, match="unknown setting 'port'"):
        Proposer(config_of({"port": 1}))


def test_values_of_requests_are_repeated_for_their_tokens():
    values, ends = torch.tensor([0.5, 0.0, 0.7]), torch.tensor([2, 2, 3])
    found = expand_batch_to_tokens(values, ends, 3, replace_from=0, replace_to=1)
    assert found.tolist() == torch.tensor([0.5, 0.5, 0.7]).tolist()
    kept = expand_batch_to_tokens(torch.tensor([4, 0]), torch.tensor([1, 3]), 3, 0, 1)
    assert kept.tolist() == [4, 1, 1]


def test_a_sampler_is_repaired_only_where_it_loses_values(caplog: pytest.LogCaptureFixture):
    right = SimpleNamespace(expand_batch_to_tokens=expand_batch_to_tokens)
    assert not repair_sampling(right) and not caplog.text
    wrong = SimpleNamespace(expand_batch_to_tokens=lambda x, ends, size, **_: torch.zeros(size))
    assert repair_sampling(wrong) and "loses the temperature" in caplog.text
    assert wrong.expand_batch_to_tokens is expand_batch_to_tokens


@NEEDS_VLLM
@pytest.mark.process
def test_vllm_s_sampler_keeps_temperatures_once_the_proposer_is_loaded():
    code = """
import torch
from types import SimpleNamespace
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from diffuspec_client.vllm import Proposer
from tests.support.forked import forked
current_platform.register_triton_kernel_overrides()
proposer = Proposer.__new__(Proposer)
proposer.load_model()
values = torch.tensor([0.5, 0.0, 0.7])
print(rejection_sampler.expand_batch_to_tokens(values, torch.tensor([1, 3, 4]), 4, 0, 1).tolist())
"""
    expected = torch.tensor([0.5, 1.0, 1.0, 0.7]).tolist()
    assert output_of(PYTHON, code).splitlines()[-1] == str(expected)


@NEEDS_VLLM
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_vllm_s_answers_in_float32_are_the_same_with_drafts_and_when_their_server_is_killed(
    tmp_path: Path,
):
    from diffuspec.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(SMOLLM2)
    chats = ["Count from one to twenty in words.", "Repeat three times: the cat sat on the mat."]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": chat}], add_generation_prompt=True, return_dict=False
        )
        for chat in chats
    ]
    address = f"unix:{tmp_path / 'drafts'}"
    log = tmp_path / "server.log"

    def started(system: str) -> AbstractContextManager[JsonWorker]:
        model, worker_log = SMOLLM2.absolute(), tmp_path / f"{system}.log"
        return vllm(model, "float32", 2, system, address, worker_log, is_compiled=False)

    with draft_server(address, log, num_draft_tokens=4) as process:
        with started("plain") as one:
            expected = one.ask(prompts=prompts, max_tokens=24, num_at_once=2)
        with started("diffuspec") as one:
            found = one.ask(prompts=prompts, max_tokens=24, num_at_once=2)
            process.kill()
            process.wait()
            after = one.ask(prompts=prompts, max_tokens=24, num_at_once=2)
    assert found["tokens"] == after["tokens"] == expected["tokens"]
    assert found["counts"]["num_accepted_tokens"] > 0

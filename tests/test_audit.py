"""Audits find an answer that drafts have changed, and only such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diffuspec.audit import Auditor, Divergence, audit
from diffuspec.core.losses import on_begin
from diffuspec.core.params import SamplingParams
from diffuspec.core.token_ids import as_token_ids
from diffuspec.core.types import TokenLogprobs, Verdict, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from diffuspec.serve.server import EngineBackend
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.fakes import FakeDrafter, FakeVerifier, always_right, oracle_of

PROMPT = [1, 2, 3]
SAMPLING = SamplingParams(max_tokens=12, ignore_eos=True)


class WrongVerifier(FakeVerifier):
    """Says another token than its own at the end of every draft that it accepts whole."""

    def _verify(self, request: VerifyRequest) -> Verdict:
        verdict = super()._verify(request)
        if not verdict.accepted_nodes:
            return verdict
        wrong = (verdict.token_ids[-1] + 1) % self.info.vocab_size
        return replace(verdict, token_ids=(*verdict.token_ids[:-1], wrong))

    def _logprobs(self, prefix: list[int], sampling: SamplingParams) -> TokenLogprobs:  # type: ignore[override]
        return TokenLogprobs(-0.5, ((1, -0.5), (2, -0.75)))


def make_engine(target: Path, verifier: FakeVerifier) -> Engine:
    config = parse_config({"target": {"path": target}, "speculation": {"policy": "fixed"}})
    drafter = FakeDrafter(oracle_of(verifier), always_right)
    return Engine(config, verifier, drafter, load_tokenizer(target))


def audits(engine: Engine) -> dict[str, float]:
    [family] = [one for one in engine.metrics.registry.collect() if one.name == "diffuspec_audits"]
    return {sample.labels["result"]: sample.value for sample in family.samples}


@pytest.mark.parametrize("sampling", [SAMPLING, replace(SAMPLING, temperature=1.0, seed=3)])
async def test_an_answer_without_fault_passes(
    target_path: Callable[[str], Path], sampling: SamplingParams
) -> None:
    async with make_engine(target_path("qwen2"), FakeVerifier()) as engine:
        answer = await engine.complete(PROMPT, sampling)
        assert answer.stats.num_accepted_tokens
        assert await audit(engine, PROMPT, sampling, answer.token_ids) is None


async def test_a_verifier_that_drafts_lead_astray_is_caught(
    target_path: Callable[[str], Path],
) -> None:
    async with make_engine(target_path("qwen2"), WrongVerifier()) as engine:
        answer = await engine.complete(PROMPT, SAMPLING)
        found = await audit(engine, PROMPT, SAMPLING, answer.token_ids)
        assert found is not None and found.plain_token_id is not None
        assert found == Divergence(
            found.position, answer.token_ids[found.position], found.plain_token_id, 0.25
        )
        assert found.token_id == (found.plain_token_id + 1) % engine.verifier.info.vocab_size


async def test_an_answer_that_ended_early_is_caught(target_path: Callable[[str], Path]) -> None:
    async with make_engine(target_path("qwen2"), WrongVerifier()) as engine:
        plain = await engine.complete(PROMPT, replace(SAMPLING, max_tokens=1))
        found = await audit(engine, PROMPT, SAMPLING, plain.token_ids)
        assert found is not None and (found.position, found.token_id) == (1, None)


@pytest.mark.parametrize(
    ("verifier", "result"), [(FakeVerifier, "same"), (WrongVerifier, "different")]
)
async def test_a_service_audits_the_answers_that_are_drawn(
    target_path: Callable[[str], Path], verifier: type[FakeVerifier], result: str
) -> None:
    async with make_engine(target_path("qwen2"), verifier()) as engine:
        backend = EngineBackend(engine, "model", ServeSettings(audit_rate=1.0))
        stream = backend.stream(as_token_ids(PROMPT), SAMPLING, None, "a")
        assert sum([len(output.token_ids) async for output in stream]) == 12
        assert backend.auditor is not None
        await backend.auditor.finish()
        assert audits(engine) == {"same": 0, "different": 0, "skipped": 0, result: 1}


async def test_answers_beyond_the_queue_and_those_not_drawn_are_not_audited(
    target_path: Callable[[str], Path],
) -> None:
    async with make_engine(target_path("qwen2"), FakeVerifier()) as engine:
        numbers = iter([0.5, *[0.1] * 20])
        auditor = Auditor(engine, 0.3, lambda: next(numbers))
        auditor.offer("not drawn", PROMPT, SAMPLING, [9])
        for number in range(20):
            auditor.offer(str(number), PROMPT, SAMPLING, [9])
        assert audits(engine)["skipped"] == 4
        await auditor.close()
        assert audits(engine) == {"same": 0, "different": 0, "skipped": 4}


async def test_an_audit_is_not_taken_for_the_request_whose_answer_it_checks(
    target_path: Callable[[str], Path],
) -> None:
    begun: list[str] = []
    on_begin.set(lambda: begun.append("the request"))
    async with make_engine(target_path("qwen2"), FakeVerifier()) as engine:
        answer = await engine.complete(PROMPT, SAMPLING)
        auditor = Auditor(engine, 1.0)
        auditor.offer("a", PROMPT, SAMPLING, answer.token_ids)
        await auditor.finish()
        assert audits(engine)["same"] == 1 and begun == ["the request"]

"""The target: plain decoding is transformers', and no draft changes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.core.interfaces import LAST_LAYER, Observation, Verifier
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, DraftTree, TokenIds, Verdict, VerifyRequest
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.target import CausalTarget
from tests.support.models import (
    MAX_POSITIONS,
    NUM_KNOWN_IDS,
    make_dynamic_model,
    make_longrope_model,
    make_model,
    save_tokenizer,
)

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=5)
PENALISED = SamplingParams(
    temperature=0.7, seed=3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2
)
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79]
NUM_NEW = 24
MAX_NODES = 16

Load = Callable[..., CausalTarget]


def request(
    prefix: Sequence[int],
    tree: DraftTree = EMPTY_TREE,
    sampling: SamplingParams = GREEDY,
    request_id: str = "a",
) -> VerifyRequest:
    num_prompt_tokens = min(len(PROMPT), len(prefix))
    return VerifyRequest(request_id, tokens(prefix), num_prompt_tokens, tree, sampling)


def tokens(token_ids: Sequence[int]) -> TokenIds:
    return np.array(token_ids, np.int32)


def load(path: Path, exact: bool = False) -> CausalTarget:
    config = TargetConfig(
        path=path, device="cpu", max_sequences=3, max_tree_nodes=MAX_NODES, exact=exact
    )
    return CausalTarget.load(config)


async def verify_one(target: Verifier, request: VerifyRequest) -> Verdict:
    """Verify a request, again while it is held because the masks of its grammar are not ready."""
    while True:
        [verdict] = await target.verify([request])
        if not verdict.is_held:
            return verdict


async def decode(target: Verifier, sampling: SamplingParams, num_new: int = NUM_NEW) -> list[int]:
    token_ids = list(PROMPT)
    for _ in range(num_new):
        token_ids += (await verify_one(target, request(token_ids, sampling=sampling))).token_ids
    await target.release("a")
    return token_ids


def with_wrong_branches(true_tokens: Sequence[int], rng: np.random.Generator) -> DraftTree:
    """Return a tree that holds some of the true continuation among random branches."""
    token_ids: list[int] = []
    parents: list[int] = []
    right = -1  # node of the true path so far
    for token_id in true_tokens:
        for _ in range(int(rng.integers(0, 3))):
            wrong = int(rng.integers(3, NUM_KNOWN_IDS))
            parent = int(rng.integers(-1, len(token_ids))) if token_ids else -1
            taken = [t for t, p in zip(token_ids, parents, strict=True) if p == parent]
            if wrong not in taken and (parent != right or wrong != token_id):
                token_ids.append(wrong)
                parents.append(parent)
        taken = [t for t, p in zip(token_ids, parents, strict=True) if p == right]
        if token_id in taken or len(token_ids) >= MAX_NODES - 3:
            break
        token_ids.append(token_id)
        parents.append(right)
        right = len(token_ids) - 1
    return DraftTree(tuple(token_ids), tuple(parents))


@pytest.fixture(scope="module")
def target(family: str, family_path: Callable[[str], Path]) -> Iterator[CausalTarget]:
    target = load(family_path(family))
    yield target
    target.close()


@pytest.fixture
def loaded(family_path: Callable[[str], Path]) -> Iterator[Load]:
    """Load targets of a family, and close them after the test."""
    with contextlib.ExitStack() as stack:

        def new(family: str, exact: bool = False) -> CausalTarget:
            target = load(family_path(family), exact)
            stack.callback(target.close)
            return target

        yield new


@pytest.fixture
def qwen2(loaded: Load) -> CausalTarget:
    return loaded("qwen2")


@pytest.mark.no_cover
async def test_plain_greedy_decoding_equals_transformers_generate(
    target: CausalTarget, family: str
) -> None:
    model = make_model(family)
    model.generation_config.eos_token_id = None
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=NUM_NEW, do_sample=False)
    assert await decode(target, GREEDY) == expected[0].tolist()


@pytest.mark.no_cover
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "top_p", "penal"])
async def test_no_draft_changes_the_text(target: CausalTarget, sampling: SamplingParams) -> None:
    rng = np.random.default_rng(1)
    expected = await decode(target, sampling)
    token_ids, num_steps = list(PROMPT), 0
    while len(token_ids) < len(expected):
        tree = with_wrong_branches(expected[len(token_ids) :], rng)
        token_ids += (await verify_one(target, request(token_ids, tree, sampling))).token_ids
        num_steps += 1
    assert token_ids[: len(expected)] == expected
    assert num_steps < NUM_NEW / 2, "true tokens must be accepted"


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
async def test_angles_are_fixed_up_to_the_end_of_the_context(tmp_path: Path, kind: str) -> None:
    """The first has others beyond 128 positions, the second beyond 256."""
    model = make_longrope_model() if kind == "longrope" else make_dynamic_model()
    size = 128 if kind == "longrope" else MAX_POSITIONS
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    target = CausalTarget.load(
        TargetConfig(path=tmp_path, device="cpu", max_model_len=size, max_sequences=2)
    )
    prompt = np.random.default_rng(0).integers(3, NUM_KNOWN_IDS, size - 16).tolist()
    model.generation_config.eos_token_id = None
    whole = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0].tolist()
    assert await decode_beside(target, prompt, whole) == whole
    target.close()


async def decode_beside(target: CausalTarget, prompt: list[int], whole: list[int]) -> list[int]:
    """Decode with half-right drafts, in a batch with a draft that ends with the context."""
    token_ids, longest = prompt, request(whole[:-4], chain([5] * 4), request_id="longest")
    while len(token_ids) < len(whole):
        draft = chain([*whole[len(token_ids) :][:3], *[5] * 9][: len(whole) - len(token_ids)])
        verdicts = await target.verify([longest, request(token_ids, draft)])
        token_ids = [*token_ids, *verdicts[1].token_ids]
    return token_ids[: len(whole)]


@pytest.mark.parametrize("exact", [False, True], ids=["ragged", "exact"])
async def test_learned_positions_serve_a_full_context(loaded: Load, exact: bool) -> None:
    target = loaded("gpt2", exact)
    prefix = np.random.default_rng(0).integers(3, NUM_KNOWN_IDS, MAX_POSITIONS).tolist()
    [expected] = make_model("gpt2")(torch.tensor([prefix])).logits[:, -1, :NUM_KNOWN_IDS].argmax(-1)
    await verify_one(target, request(prefix[:-2], chain(prefix[-2:])))
    assert (await verify_one(target, request(prefix))).token_ids == (int(expected),)


async def test_accepted_branch_is_kept_in_the_cache(qwen2: CausalTarget) -> None:
    truth = (await decode(qwen2, GREEDY))[len(PROMPT) :]
    tree = DraftTree((5, truth[0], 6, truth[1], 7, truth[2]), (-1, -1, 0, 1, 3, 3))
    verdict = await verify_one(qwen2, request(PROMPT, tree))
    assert verdict.accepted_nodes == (1, 3, 5)
    assert verdict.token_ids == tuple(truth[:4])
    assert verdict.num_accepted_tokens == 3
    table = qwen2.runner.cache.acquire("a", tokens(PROMPT + truth[:4]))
    assert table.length == len(PROMPT) + 3
    verdict = await verify_one(qwen2, request(PROMPT + truth[:4], chain(truth[4:8])))
    assert verdict.token_ids == tuple(truth[4:9])
    assert verdict.num_cached_tokens == len(PROMPT) + 3


class Watcher:
    """An observer that keeps what it is shown."""

    num_top = 3

    def __init__(
        self, is_active: bool = True, fails: bool = False, hidden_layers: tuple[int, ...] = ()
    ) -> None:
        self.is_active = is_active
        self.hidden_layers = hidden_layers
        self.seen: list[Observation] = []
        self._fails = fails

    def observe(self, observations: Sequence[Observation]) -> None:
        self.seen += observations
        if self._fails:
            raise RuntimeError("a bug")


async def test_observers_are_shown_what_the_target_says_after_every_row(
    qwen2: CausalTarget, caplog: pytest.LogCaptureFixture
) -> None:
    truth = (await decode(qwen2, GREEDY))[len(PROMPT) :]
    tree = DraftTree((5, truth[0], truth[1]), (-1, -1, 1))
    watchers = idle, failing, watching = Watcher(False), Watcher(fails=True), Watcher()
    for watcher in watchers:
        qwen2.add_observer(watcher)
    verdict = await verify_one(qwen2, request(PROMPT, tree))
    assert verdict.token_ids == tuple(truth[:3]) and "a bug" in caplog.text
    [seen] = watching.seen
    assert not idle.seen and len(failing.seen) == 1
    assert (seen.prefix.tolist(), seen.tree, seen.accepted_nodes) == (PROMPT, tree, (1, 2))
    for row, path in enumerate([[], [5], truth[:1], truth[:2]]):
        alone = await verify_one(
            qwen2, request([*PROMPT, *path], sampling=replace(GREEDY, logprobs=3))
        )
        assert alone.logprobs is not None
        assert seen.top_token_ids[row].tolist() == [one for one, _ in alone.logprobs[0].top]
        assert seen.token_ids[row] == alone.token_ids[0]
    for watcher in watchers:
        qwen2.remove_observer(watcher)
    await verify_one(qwen2, request(PROMPT))
    assert len(failing.seen) == 5


@pytest.mark.parametrize("exact", [False, True], ids=["ragged", "exact"])
async def test_observers_get_the_hidden_states_of_the_rows_that_a_step_computes(
    loaded: Load, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuspec.models.target.MAX_PREFILL_ROWS", 5)  # pieces inside a step
    target, model = loaded("qwen2", exact), make_model("qwen2")
    first, last = Watcher(hidden_layers=(1, 0)), Watcher(hidden_layers=(LAST_LAYER,))
    for watcher in (Watcher(), first, last):
        target.add_observer(watcher)
    await verify_one(target, request(PROMPT[:3]))
    tree = chain([5, 6]) if exact else DraftTree((5, 6, 7), (-1, -1, 1))
    other = request([9, *PROMPT], request_id="b")
    await target.verify([request(PROMPT * 2, tree), other])
    path = [5, 6] if exact else [6, 7]
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT * 2 + path]), output_hidden_states=True)
    states = expected.hidden_states
    for seen, layers in ((first.seen[1], (states[2], states[1])), (last.seen[1], (states[3],))):
        assert seen.num_cached == 3
        for found, wanted in zip(seen.hidden_states, layers, strict=True):
            assert found.shape == (2 * len(PROMPT) - 3 + tree.num_nodes, 48)
            of_path = found if exact else torch.cat([found[:-3], found[-2:]])
            torch.testing.assert_close(of_path, wanted[0, 3:], atol=1e-4, rtol=1e-4)
    assert last.seen[2].num_cached == 0
    assert last.seen[2].hidden_states[0].shape == (1 + len(PROMPT), 48)


async def test_a_shortened_prefix_rolls_the_cache_back(qwen2: CausalTarget) -> None:
    expected = await decode(qwen2, GREEDY)
    await verify_one(qwen2, request([*PROMPT, 1, 2, 3, 4, 5]))
    verdict = await verify_one(qwen2, request(PROMPT))
    assert verdict.token_ids == (expected[len(PROMPT)],)


async def test_batch_answers_each_as_if_alone(qwen2: CausalTarget) -> None:
    expected = await decode(qwen2, GREEDY)
    sampled = await decode(qwen2, SAMPLED)
    prefix = expected[:20]
    verdicts = await qwen2.verify(
        [
            request(PROMPT, chain(sampled[8:12]), SAMPLED, "x"),
            request(prefix, EMPTY_TREE, GREEDY, "y"),
            request(PROMPT[:5], DraftTree((9, 9), (-1, 0)), GREEDY, "z"),
        ]
    )
    assert verdicts[0].token_ids == tuple(sampled[8:13])
    assert verdicts[1].token_ids == (expected[20],)
    alone = await verify_one(qwen2, request(PROMPT[:5], EMPTY_TREE, GREEDY, "w"))
    assert verdicts[2].token_ids[:1] == alone.token_ids
    assert len({verdict.verify_seconds for verdict in verdicts}) == 1
    assert verdicts[0].verify_seconds > 0


@pytest.mark.parametrize("salt", [None, "x"])
async def test_a_limit_on_what_is_read_lets_a_prefix_take_several_steps(
    qwen2: CausalTarget, salt: str | None
) -> None:
    prefix = [7, *PROMPT, *PROMPT]
    sampling = SamplingParams(temperature=1.0, seed=3, cache_salt=salt)
    asked = replace(request(prefix, chain([5, 6]), sampling), max_read_tokens=7)
    read = [await verify_one(qwen2, asked) for _ in range(3)]
    assert len(prefix) == 17
    assert [one.num_cached_tokens for one in read] == [0, 7, 14]
    assert [one.num_unread_tokens for one in read] == [10, 3, 0]
    alone = await verify_one(qwen2, request(prefix, EMPTY_TREE, sampling, "alone"))
    assert (alone.num_cached_tokens, alone.num_unread_tokens) == (16, 0)
    assert read[-1].token_ids[:1] == alone.token_ids[:1]


async def test_what_prompts_of_one_batch_begin_with_is_read_once(loaded: Load) -> None:
    target, watcher = loaded("qwen2"), Watcher(hidden_layers=(0,))
    target.add_observer(watcher)
    shared = [n % 50 + 3 for n in range(60)]
    prefixes = [[*shared, 5, 6], [*shared, 7], [*shared, 5, 6], [9, 8]]
    first, again, whole, other = (
        request(prefix, chain([7, 7]), SAMPLED, name)
        for name, prefix in zip("abcd", prefixes, strict=True)
    )
    before = target.runner.num_forwards
    verdicts = [*await target.verify([first, again, whole]), await verify_one(target, other)]
    assert [one.num_cached_tokens for one in verdicts] == [0, 60, 60, 0]
    assert target.runner.num_forwards == before + 3  # what is shared, the rest, the other
    rows = [len(seen.hidden_states[0]) for seen in watcher.seen]
    assert rows == [62 + 2, 1 + 2, 2 + 2, 2 + 2]
    target.remove_observer(watcher)
    for prefix, verdict in zip(prefixes, verdicts, strict=True):
        expected = await verify_one(loaded("qwen2"), request(prefix, chain([7, 7]), SAMPLED))
        assert verdict.token_ids == expected.token_ids


async def test_what_prompts_of_one_batch_begin_with_is_read_once_for_each_salt(loaded: Load):
    target, prefix = loaded("qwen2"), [n % 49 + 3 for n in range(60)]
    batch = [
        request(prefix, chain([7, 7]), replace(SAMPLED, cache_salt=salt), name)
        for name, salt in (("a", "x"), ("b", "y"), ("c", "x"))
    ]
    verdicts = await target.verify(batch)
    assert [verdict.num_cached_tokens for verdict in verdicts] == [0, 0, 59]
    assert len({verdict.token_ids for verdict in verdicts}) == 1


async def test_prefill_in_chunks_is_the_same(
    qwen2: CausalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = (await decode(qwen2, GREEDY))[:30]
    monkeypatch.setattr("diffuspec.models.target.MAX_PREFILL_ROWS", 7)
    fresh = await verify_one(qwen2, request([1, *prefix], request_id="inside"))
    monkeypatch.undo()
    again = await verify_one(qwen2, request([1, *prefix], request_id="whole"))
    assert fresh.token_ids == again.token_ids


async def test_more_requests_than_run_at_a_time(qwen2: CausalTarget) -> None:
    expected = await decode(qwen2, GREEDY)
    for turn in range(2):
        for name in "abcde":
            verdict = await verify_one(qwen2, request(expected[: 8 + turn], request_id=name))
            assert verdict.token_ids == (expected[8 + turn],)


async def test_logprobs_are_the_unmodified_distributions(qwen2: CausalTarget) -> None:
    sampling = replace(SAMPLED, logprobs=3)
    truth = (await decode(qwen2, SAMPLED))[len(PROMPT) :]
    verdict = await verify_one(qwen2, request(PROMPT, chain(truth[:2]), sampling))
    assert verdict.logprobs is not None
    with torch.inference_mode():
        logits = make_model("qwen2")(torch.tensor([PROMPT + truth[:2]])).logits[0]
    expected = logits[len(PROMPT) - 1 :, :NUM_KNOWN_IDS].log_softmax(-1)
    assert len(verdict.logprobs) == 3
    for row, token_id, found in zip(expected, truth, verdict.logprobs, strict=False):
        assert found.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
        values, ids = row.topk(3)
        assert [pair[0] for pair in found.top] == ids.tolist()
        assert [pair[1] for pair in found.top] == pytest.approx(values.tolist(), abs=1e-4)


async def test_ids_past_the_tokenizer_are_never_chosen(save_target: Callable[[str], Path]) -> None:
    path = save_target("qwen2")
    weights = load_file(path / "model.safetensors")
    head = weights["lm_head.weight"]
    head[NUM_KNOWN_IDS:] = head[0] * 100
    head[NUM_KNOWN_IDS + 1 :] *= -1
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    target = load(path)
    assert max(await decode(target, SAMPLED)) < NUM_KNOWN_IDS
    target.close()


async def test_event_loop_runs_on_while_the_target_works(qwen2: CausalTarget) -> None:
    prefix = list(np.random.default_rng(0).integers(3, NUM_KNOWN_IDS, MAX_POSITIONS))
    task = asyncio.create_task(verify_one(qwen2, request(prefix)))
    await asyncio.sleep(0)
    assert not task.done()
    await task


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request([]), "1 to 256 tokens, got 0"),
        (request([3] * 257), "1 to 256 tokens, got 257"),
        (request([3, -1]), "below 118, got -1"),
        (request([3, 118]), "below 118, got 118"),
        (request([3], chain([118])), "below 118, got 118"),
        (request([3], DraftTree((4, 5), (0, -1))), "node 0: parent must be"),
        (request([3], DraftTree((4, 4), (-1, -1))), "node 1: a sibling"),
        (request([3], DraftTree((4,), (-1, 0))), "1 tokens but 2 parents"),
        (request([3], chain([4] * 17)), "at most 16 nodes, got 17"),
        (request([3] * 250, chain([4] * 7)), "must end by token 256, it ends at 257"),
        (request([3], sampling=replace(SAMPLED, seed=None)), "seed must be given"),
    ],
)
async def test_bad_requests_are_refused_before_any_work(
    qwen2: CausalTarget, wrong: VerifyRequest, message: str
) -> None:
    good = request(PROMPT, request_id="good")
    with pytest.raises(InvalidRequestError, match=message):
        await qwen2.verify([good, replace(wrong, request_id="wrong")])
    assert qwen2.runner.num_forwards == 0


async def test_bad_batches_are_refused_before_any_work(qwen2: CausalTarget) -> None:
    with pytest.raises(InvalidRequestError, match="twice"):
        await qwen2.verify([request(PROMPT), request(PROMPT)])
    with pytest.raises(VerifierError, match="4 requests in one batch, max_sequences is 3"):
        await qwen2.verify([request(PROMPT, request_id=name) for name in "abcd"])
    assert qwen2.runner.num_forwards == 0
    assert await qwen2.verify([]) == []


async def test_nan_logits_fail_and_clear_the_cache(
    qwen2: CausalTarget,
) -> None:
    expected = await decode(qwen2, GREEDY, 1)
    embedding = qwen2.runner.model.get_input_embeddings().weight
    with torch.inference_mode():
        good = embedding[7].clone()
        embedding[7] = torch.nan
    with pytest.raises(VerifierError, match="not finite for requests bad"):
        await qwen2.verify([request(PROMPT), request([3, 7], request_id="bad")])
    with torch.inference_mode():
        embedding[7] = good
    verdicts = await qwen2.verify([request(PROMPT), request([3, 7], request_id="bad")])
    assert verdicts[0].token_ids == (expected[-1],)
    assert np.isfinite(verdicts[1].token_ids).all()


@pytest.mark.parametrize("part", ["runner.run_packed", "pages.cache.KVCache.commit"])
async def test_failures_in_a_step_raise_verifier_error(
    qwen2: CausalTarget, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    expected = await decode(qwen2, GREEDY, 1)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(f"diffuspec.models.{part}", fail)
        with pytest.raises(VerifierError, match="out of memory"):
            await qwen2.verify([request(PROMPT)])
    assert (await verify_one(qwen2, request(PROMPT))).token_ids == (expected[-1],)


async def test_a_request_without_pages_is_held_until_others_are_released(
    qwen2: CausalTarget,
) -> None:
    store = qwen2.runner.cache.store
    qwen2.runner.cache = KVCache(
        store.shape, 3, transposes_keys=store.transposes_keys, preempts=False
    )
    first = request([5] * 100, request_id="first")
    second = request([5] * 64 + [6] * 70, request_id="second")
    [verdict] = await qwen2.verify([first])
    assert (verdict.is_held, verdict.pages) == (False, (1, 0))
    verdicts = await qwen2.verify([first, second])
    assert [one.is_held for one in verdicts] == [False, True]
    assert verdicts[1].num_unread_tokens == 134 - 64, "its first page is shared"
    assert {one.pages for one in verdicts} == {(1, 1)}
    await qwen2.release("first")
    [verdict] = await qwen2.verify([second])
    assert (verdict.is_held, verdict.pages) == (False, (0, 0))


@pytest.mark.parametrize("exact", [False, True])
async def test_rows_that_every_layers_window_hides_take_no_pages(loaded: Load, exact: bool) -> None:
    target = loaded("mistral", exact)
    token_ids = [7] * 200
    for _ in range(10):
        [verdict] = await target.verify([request(token_ids)])
        token_ids += verdict.token_ids
    assert target.info.num_pages is not None and verdict.pages is not None
    assert target.info.num_pages - verdict.pages.num_free == 1
    [fresh] = await target.verify([request(token_ids[:-1], request_id="fresh")])
    assert (fresh.token_ids[0], fresh.num_cached_tokens) == (token_ids[-1], 0)
    await target.release("fresh")


async def test_a_device_without_memory_is_told_with_what_to_do(
    qwen2: CausalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr("diffuspec.models.runner.run_packed", fail)
    with pytest.raises(VerifierError, match=r"smaller cache_memory leaves more: tried .* 2 GiB"):
        await qwen2.verify([request(PROMPT)])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_target_of_one_fixed_shape_takes_the_best_path_of_a_tree(
    loaded: Load, sampling: SamplingParams
) -> None:
    target = loaded("gpt2", exact=True)
    assert not target.runner.takes_trees
    truth = (await decode(target, sampling))[len(PROMPT) :]
    tree = DraftTree((truth[0], 5, truth[1], truth[2], 6), (-1, 0, 0, 2, 3))
    verdict = await verify_one(target, request(PROMPT, tree, sampling))
    assert verdict.accepted_nodes == (0,), "the first child of node 0 is node 1"
    tree = DraftTree((truth[0], truth[1], 5, truth[2], 6), (-1, 0, 0, 1, 0))
    verdict = await verify_one(target, request(PROMPT, tree, sampling))
    assert verdict.accepted_nodes == (0, 1, 3)
    assert verdict.token_ids == tuple(truth[:4])

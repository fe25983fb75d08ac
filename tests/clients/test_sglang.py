"""The plug-in for SGLang: its trees, and its place among SGLang's own classes.

SGLang is not installed. With DIFFUSPEC_SGLANG_WHEEL, a directory with its wheel unpacked, its own
registry and its own worker for n-grams are run, with what they import faked.
"""

from __future__ import annotations

import os
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diffuspec_client import Draft, sglang
from diffuspec_client.draft_service_pb2 import RowDraft, StepDrafts
from diffuspec_client.sglang import Trees, missing_hooks, tree_of
from tests.support.draft_streams import Scripted, output_of

WHEEL = os.environ.get("DIFFUSPEC_SGLANG_WHEEL", "")
NUM_NODES = 5
NGRAMS = (np.arange(2 * NUM_NODES), np.zeros(2 * NUM_NODES**2, bool))


def batch_of(*requests: tuple[str, list[int], list[int]]) -> Any:
    return SimpleNamespace(
        reqs=[
            SimpleNamespace(
                rid=name, origin_input_ids_unpadded=array("q", a), output_ids=array("q", b)
            )
            for name, a, b in requests
        ]
    )


def worker_of(*accepted: list[int]) -> Any:
    """A worker that overlaps: its requests have tokens that the scheduler has not put down."""
    padded = [[*one, *[0] * (NUM_NODES - len(one))] for one in accepted]
    return SimpleNamespace(
        prev_token_ids=[token for one in padded for token in one],
        prev_accept_lens=[len(one) for one in accepted],
    )


@pytest.fixture
def served(scripted: Any) -> tuple[Scripted, Trees]:
    def answer(step: Any) -> StepDrafts:
        """Draft a tree for a request that is named so, and nothing for others."""
        tree = RowDraft(token_ids=[7, 8, 9], parents=[-1, -1, 0], confidences=[0.0] * 3)
        rows = [tree if row.request_id == "tree" else RowDraft() for row in step.rows]
        return StepDrafts(step_id=step.step_id, rows=rows)

    server, client = scripted(answer, 5.0, max_draft_tokens=NUM_NODES - 1, is_tree=True)
    return server, Trees(client, NUM_NODES)


def test_a_tree_has_a_mask_of_ancestors_and_is_filled_up_by_a_chain():
    tokens, mask = tree_of(Draft([7, 8, 9], [-1, -1, 0]), 4, NUM_NODES)
    assert tokens.tolist() == [4, 7, 8, 9, 9]
    assert mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    with pytest.raises(ValueError, match="same parent and the same token"):
        tree_of(Draft([7, 7], [-1, -1]), 4, NUM_NODES)


def test_trees_take_the_place_of_n_grams_where_there_are_any(served: Any):
    server, trees = served
    batch = batch_of(("other", [1, 2], []), ("tree", [1, 2, 3], [4]))
    tokens, mask = trees.put(worker_of([], [5, 6]), batch, *NGRAMS)
    assert tokens.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 9]
    assert (tokens.shape, mask.shape, mask.dtype) == ((10,), (50,), bool)
    assert not mask[:25].any() and mask[25:].reshape(5, 5).diagonal().all()
    trees.put(worker_of([9]), batch_of(("tree", [1, 2, 3], [4, 5, 6])), *(x[:25] for x in NGRAMS))
    steps = [one.step for one in server.requests if one.WhichOneof("message") == "step"]
    assert [[*row.token_ids] for row in steps[0].rows] == [[1, 2], [1, 2, 3, 4, 5, 6]]
    assert [[*steps[0].ended_request_ids]] == [[]] and steps[0].rows[1].num_prompt_tokens == 3


def test_requests_that_leave_the_batch_have_ended(served: Any):
    server, trees = served
    trees.put(worker_of([], []), batch_of(("a", [1], []), ("b", [2], [])), *NGRAMS)
    ngrams = (np.arange(NUM_NODES), np.zeros(NUM_NODES**2, bool))
    trees.put(worker_of([]), batch_of(("b", [2], [3])), *ngrams)
    trees.forget()
    trees.put(worker_of([]), batch_of(("c", [4], [])), *ngrams)
    steps = [one.step for one in server.requests if one.WhichOneof("message") == "step"]
    assert [[*one.ended_request_ids] for one in steps] == [[], ["a"], ["b"]]


def test_whatever_fails_leaves_the_n_grams(served: Any, caplog: pytest.LogCaptureFixture):
    server, trees = served
    for _ in range(2):
        assert trees.put(None, batch_of(("tree", [1], []), ("b", [2], [])), *NGRAMS) == NGRAMS
    assert caplog.text.count("n-grams alone draft in this step") == 1
    server.stop()
    batch = batch_of(("tree", [1], []), ("b", [2], []))
    assert [x.tolist() for x in trees.put(worker_of([], []), batch, *NGRAMS)] == [
        x.tolist() for x in NGRAMS
    ]


def test_registering_without_sglang_warns_once_and_does_nothing(caplog: pytest.LogCaptureFixture):
    sglang.register()
    assert len(caplog.records) == 1
    assert "lacks sglang.srt.speculative.spec_info.SpeculativeAlgorithm.NGRAM" in caplog.text
    assert missing_hooks([("os", "path.join"), ("os", "path.nothing")]) == ["os.path.nothing"]


IN_SGLANG = """
import importlib.abc, importlib.machinery, sys, types
from types import SimpleNamespace
import numpy as np

REAL = {"spec_info", "spec_registry", "ngram_worker"}  # of SGLang itself; all else is faked

class Fake(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__init__": lambda self, *a, **k: None})
        setattr(self, name, value)
        return value

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "sglang":
            return None
        last = name.split(".")[-1]
        if name.startswith("sglang.srt.speculative.") and last in REAL:
            file = f"{WHEEL}/{name.replace('.', '/')}.py"
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Fake(spec.name)
    def exec_module(self, module):
        if module.__name__ == "sglang.srt.utils":
            module.is_cpu = lambda: True

import importlib.util
sys.meta_path.insert(0, Finder())

from diffuspec_client import sglang
from diffuspec_client.client import Draft
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.ngram_worker import NGRAMWorker

assert sglang.missing_hooks(sglang.HOOKS) == sglang.missing_hooks(sglang.WORKER_HOOKS) == []
sglang.register()
sglang.register()  # twice, as where plug-ins are loaded twice
found = SpeculativeAlgorithm.from_string("diffuspec")
ngram = SpeculativeAlgorithm.NGRAM
for name in vars(SpeculativeAlgorithm):
    if name.startswith(("is_", "supports_", "has_")):
        assert getattr(found, name)() == getattr(ngram, name)(), name
assert found.is_ngram() and not found.need_topk() and not found.carries_draft_hidden_states()
assert found.get_platform_worker_cls() is None
assert type(found.create_future_map("cpu", None)).__name__ == "FutureMap"

worker = found.factory(None)
assert issubclass(worker, NGRAMWorker) and issubclass(worker, sglang.TreeWorker)
one = worker.__new__(worker)
one.draft_token_num, one.enable_overlap, one.max_trie_depth = 4, True, 8
one.ngram_corpus = SimpleNamespace(
    synchronize=lambda: None,
    batch_get=lambda ids, tokens, sizes: (np.arange(8), np.zeros(32, bool)),
)
class Client:
    def step(self, rows, ended):
        self.rows = rows
        return [Draft(), Draft([21, 22], [-1, 0])]
client = Client()
one._trees = sglang.Trees(client, 4)
import torch
from array import array
reqs = [
    SimpleNamespace(
        rid=name,
        origin_input_ids=array("q", [1, 2]),  # what 0.5.22 reads itself
        origin_input_ids_unpadded=array("q", [1, 2]),
        output_ids=array("q"),
    )
    for name in "ab"
]
batch = SimpleNamespace(
    reqs=reqs,
    grammar_needs_sync=lambda: False,
    spec_info=SimpleNamespace(
        accept_tokens=torch.tensor([5, 0, 0, 0, 6, 7, 0, 0]), accept_lens=torch.tensor([1, 2])
    ),
)
tokens, mask = one._prepare_draft_tokens(batch)
assert tokens.tolist() == [0, 1, 2, 3, 7, 21, 22, 22], tokens
assert [row.token_ids.tolist() for row in client.rows] == [[1, 2, 5], [1, 2, 6, 7]]
print("in SGLang")
"""


@pytest.mark.skipif(not WHEEL, reason="DIFFUSPEC_SGLANG_WHEEL is not set")
@pytest.mark.process
def test_sglang_s_own_registry_and_worker_take_the_plug_in():
    assert "in SGLang" in output_of(sys.executable, f"WHEEL = {WHEEL!r}\n{IN_SGLANG}")

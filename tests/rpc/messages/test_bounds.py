"""What is beyond a role's capacity is refused with the value and the bound."""

from typing import Any

import numpy as np
import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import MAX_PRE_DRAFTS, Lattice
from diffuspec.rpc.messages.batches import BatchReader
from diffuspec.rpc.messages.bounds import Bounds
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.messages.values import lattice_to_proto, sampling_to_proto
from diffuspec.v1 import drafter_pb2, path_scorer_pb2, verifier_pb2
from diffuspec.v1.types_pb2 import DraftRow, DraftTree, PrefixDelta
from tests.rpc.messages.test_batches import ROW

TARGET = TargetInfo(50, max_model_len=8, max_sequences=2, eos_token_ids=(0,), max_tree_nodes=3)
GREEDY = sampling_to_proto(SamplingParams())


def reader() -> BatchReader:
    return BatchReader(PrefixStore(10, 1000), Bounds(TARGET, max_id_length=32), "1/")


def delta(token_ids: list[int], request_id: str = "a", **fields: Any) -> PrefixDelta:
    fields = {"sampling": GREEDY} | fields
    return PrefixDelta(request_id=request_id, token_ids=token_ids, **fields)


@pytest.mark.parametrize(
    ("deltas", "rows", "problem"),
    [
        ([delta([1])], [{}] * (3 + MAX_PRE_DRAFTS), "rows of a batch .* 0 to 130, got 131"),
        ([delta([1], str(n)) for n in range(3)], [{}], "prefixes of a batch .* 0 to 2, got 3"),
        ([delta([1] * 9)], [{}], "tokens of a prefix must be from 0 to 8, got 9"),
        ([delta([1], base_length=2**32 - 1)], [{}], "from 0 to 8, got 4294967296"),
        ([delta([1] * 8)], [{"token_ids": [1]}], "tokens of a row's prefix .* 1 to 8, got 9"),
        ([delta([])], [{}], "tokens of a row's prefix must be from 1 to 8, got 0"),
        ([delta([50])], [{}], "token ids must be from 0 to 49, got 50"),
        ([delta([1])], [{"token_ids": [2**32 - 1]}], "from 0 to 49, got 4294967295"),
        ([delta([1], "r" * 33)], [{}], "characters of a request id .* 0 to 32, got 33"),
        ([delta([1])], [{"prefix": 1}], "builds on prefix 1 of 1"),
        ([delta([1])], [{"num_draft_tokens": 0}], "num_draft_tokens must be from 1 to 128"),
        ([delta([1])], [{"max_nodes": 2**32 - 1}], "max_nodes must be from 1 to 256"),
        ([delta([1])], [{"drafter_weight": float("nan")}], "drafter_weight .* got nan"),
        ([delta([1])], [{"num_alternatives": 9}], "num_alternatives must be from 0 to 8"),
        ([delta([1])], [{"tree_shape": 0}], "no tree shape 0"),
        ([delta([1])], [{"tree_shape": 77}], "no tree shape 77"),
        (
            [delta([1], sampling=sampling_to_proto(SamplingParams(temperature=0.5)))],
            [{}],
            "seed must be",
        ),
    ],
)
def test_a_drafting_batch_is_well_formed_and_fits_the_role(deltas, rows, problem):
    messages = [DraftRow(**(ROW | row)) for row in rows]
    batch = drafter_pb2.DraftRequest(prefixes=deltas, rows=messages)
    with pytest.raises(InvalidRequestError, match=problem):
        reader().draft_requests(batch)


def test_a_drafting_batch_may_be_as_large_as_a_coordinators():
    deltas = [delta([1] * 7, name) for name in "ab"]
    row = DraftRow(**ROW, token_ids=[49])
    batch = drafter_pb2.DraftRequest(prefixes=deltas, rows=[row] * (2 + MAX_PRE_DRAFTS))
    assert len(reader().draft_requests(batch)) == 2 + MAX_PRE_DRAFTS


@pytest.mark.parametrize(
    ("num_rows", "row", "problem"),
    [
        (3, {}, "rows of a batch must be from 0 to 2, got 3"),
        (1, {"num_prompt_tokens": 0}, "num_prompt_tokens must be from 1 to 3, got 0"),
        (1, {"num_prompt_tokens": 9}, "num_prompt_tokens must be from 1 to 3, got 9"),
        (1, {"num_prompt_tokens": 2**32 - 1}, "from 1 to 3, got 4294967295"),
        (1, {"tree": DraftTree(token_ids=[1] * 4, parents=[-1] * 4)}, "nodes .* 0 to 3, got 4"),
        (1, {"tree": DraftTree(token_ids=[1])}, "a parent per node, got 0 for 1 nodes"),
        (1, {"tree": DraftTree(token_ids=[50], parents=[-1])}, "from 0 to 49, got 50"),
    ],
)
def test_a_verifying_batch_fits_the_role(num_rows, row, problem):
    rows = [verifier_pb2.VerifyRow(**({"num_prompt_tokens": 1} | row))] * num_rows
    batch = verifier_pb2.VerifyRequest(prefixes=[delta([1, 2, 3])], rows=rows)
    with pytest.raises(InvalidRequestError, match=problem):
        reader().verify_requests(batch)


def lattice(**changes: Any) -> Lattice:
    fields: dict[str, Any] = {
        "token_ids": np.array([[9, 10], [11, -1]], np.int32),
        "logprobs": np.array([[-0.5, -1.5], [1e-6, -np.inf]], np.float32),
        "num_candidates": np.array([2, 1], np.int32),
        "num_tokens_before_eos": 2,
    }
    return Lattice(**(fields | changes))


def read_lattices(*lattices: Lattice, num_draft_tokens: int = 4) -> list[Lattice]:
    row = DraftRow(**(ROW | {"num_draft_tokens": num_draft_tokens}))
    messages = [lattice_to_proto(one) for one in lattices]
    return reader().lattices(path_scorer_pb2.SearchRequest(rows=[row], lattices=messages))


def test_a_lattice_of_the_drafters_own_is_taken():
    runners_up = np.array([[9, 10], [11, 12]], np.int32)
    no_positions = lattice(
        token_ids=np.empty((0, 1), np.int32),
        logprobs=np.empty((0, 1), np.float32),
        num_candidates=np.empty(0, np.int32),
        num_tokens_before_eos=0,
    )
    for one in (lattice(), lattice(token_ids=runners_up), no_positions):
        assert len(read_lattices(one)) == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"token_ids": np.array([[9, 50], [11, -1]], np.int32)}, "from -?[01] to 49, got 50"),
        ({"token_ids": np.array([[9, 10], [11, -2]], np.int32)}, "from -1 to 49, got -2"),
        ({"token_ids": np.array([[9, -1], [11, -1]], np.int32)}, "candidates .* 0 to 49, got -1"),
        ({"logprobs": np.array([[np.inf, -1], [0, 0]], np.float32)}, "at most 0, got inf"),
        ({"logprobs": np.array([[0.5, -1], [0, 0]], np.float32)}, "at most 0, got 0.5"),
        ({"logprobs": np.array([[-1, -np.inf], [0, 0]], np.float32)}, "finite, got -inf"),
        ({"num_tokens_before_eos": 3}, "num_tokens_before_eos must be from 0 to 2, got 3"),
        ({"num_tokens_before_eos": -1}, "num_tokens_before_eos must be from 0 to 2, got -1"),
    ],
)
def test_a_lattice_holds_the_targets_tokens_and_logprobs(changes, problem):
    with pytest.raises(InvalidRequestError, match=problem):
        read_lattices(lattice(**changes))


def test_a_row_has_one_lattice_no_longer_than_its_draft():
    with pytest.raises(InvalidRequestError, match="a lattice per row, got 2 for 1 rows"):
        read_lattices(lattice(), lattice())
    with pytest.raises(InvalidRequestError, match=r"positions of a lattice .* 0 to 1, got 2"):
        read_lattices(lattice(), num_draft_tokens=1)

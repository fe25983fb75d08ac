import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.lattice import Pruning, build_lattices
from diffuspec.models.kernels.operations import most_probable

EOS = (7, 6)


def pruning(tau=0.8, width=15, eos=EOS):
    return Pruning(candidate_mass=tau, max_candidates=width, eos_token_ids=eos)


def build_all(logits, lengths, cut, keeps=None):
    keeps = keeps or [False] * len(lengths)
    return build_lattices(*most_probable(logits, cut.max_candidates), lengths, cut, keeps)


def build_lattice(logits, cut):
    return build_all(logits, [len(logits)], cut)[0]


def logits_of(*rows):
    """Logits whose softmax is the rows, each filled up evenly to 8 tokens."""
    table = torch.zeros(len(rows), 8)
    for i, row in enumerate(rows):
        rest = (1 - sum(row.values())) / (8 - len(row))
        table[i] = torch.tensor([row.get(token, rest) for token in range(8)])
    return table.clamp(min=1e-9).log() + 3.0  # a shift that softmax takes away


def column(lattice, position):
    count = lattice.num_candidates[position]
    return lattice.token_ids[position, :count].tolist()


def test_a_token_of_mass_tau_stands_alone():
    lattice = build_lattice(logits_of({3: 0.8}, {3: 0.79}, {3: 0.95}), pruning())
    assert lattice.num_candidates.tolist() == [1, 2, 1]
    assert lattice.logprobs[:, 0] == pytest.approx(np.log([0.8, 0.79, 0.95]), abs=1e-5)


def test_the_fewest_candidates_that_reach_tau_are_kept_most_probable_first():
    lattice = build_lattice(logits_of({5: 0.2, 2: 0.5, 0: 0.15}), pruning())
    assert column(lattice, 0) == [2, 5, 0]
    assert np.exp(lattice.logprobs[0, :3]) == pytest.approx([0.5, 0.2, 0.15], abs=1e-5)


def test_max_candidates_are_kept_when_they_do_not_reach_tau():
    lattice = build_lattice(logits_of({1: 0.2, 2: 0.19, 3: 0.18}), pruning(width=3))
    assert column(lattice, 0) == [1, 2, 3]


def test_unused_cells_are_blank():
    lattice = build_lattice(logits_of({3: 0.9}), pruning(width=4))
    assert lattice.token_ids.tolist() == [[3, -1, -1, -1]]
    assert lattice.logprobs[0, 1:].tolist() == [-np.inf] * 3
    assert lattice.token_ids.dtype == np.int32 and lattice.logprobs.dtype == np.float32


def test_without_eos_every_position_is_a_column():
    lattice = build_lattice(logits_of({1: 0.9}, {2: 0.9}, {3: 0.9}), pruning())
    assert lattice.num_positions == lattice.num_tokens_before_eos == 3


def test_the_first_eos_argmax_ends_the_lattice_and_stands_alone():
    rows = {1: 0.9}, {7: 0.5, 2: 0.4}, {3: 0.9}, {7: 0.9}
    lattice = build_lattice(logits_of(*rows), pruning())
    assert lattice.num_positions == 2 and lattice.num_tokens_before_eos == 1
    assert column(lattice, 1)[0] == 7 and 2 not in column(lattice, 1)
    assert lattice.logprobs[1, 0] == pytest.approx(np.log(0.5), abs=1e-5)


def test_neither_tau_nor_max_candidates_removes_eos_from_its_column():
    sure = logits_of({7: 0.95, 6: 0.03})
    assert column(build_lattice(sure, pruning()), 0) == [7, 6]
    assert column(build_lattice(sure, pruning(width=1)), 0) == [7]
    unsure = logits_of({7: 0.3, 6: 0.05})
    assert column(build_lattice(unsure, pruning(tau=0.1, width=2)), 0) == [7]


def test_eos_is_not_forced_into_other_columns():
    lattice = build_lattice(logits_of({1: 0.9, 7: 0.05}, {2: 0.6, 7: 0.3}), pruning())
    assert column(lattice, 0) == [1] and column(lattice, 1) == [2, 7]
    assert lattice.num_tokens_before_eos == 2


def test_banned_ids_never_appear_and_have_no_mass():
    logits = logits_of({4: 0.5, 7: 0.2, 1: 0.24})
    logits[:, [4, 7]] = -torch.inf
    lattice = build_lattice(logits, pruning())
    assert column(lattice, 0) == [1] and lattice.num_tokens_before_eos == 1
    assert np.exp(lattice.logprobs[0, 0]) == pytest.approx(0.24 / 0.3, abs=1e-4)


def test_ids_left_by_a_filter_bound_the_column():
    logits = torch.full((1, 8), -torch.inf)
    logits[0, [2, 5]] = torch.tensor([1.0, 1.0])
    assert sorted(column(build_lattice(logits, pruning(tau=1.0)), 0)) == [2, 5]


def test_half_precision_logits_and_a_small_vocabulary_are_accepted():
    lattice = build_lattice(torch.zeros(2, 8, dtype=torch.bfloat16), pruning(tau=1.0, eos=()))
    assert lattice.num_candidates.tolist() == [8, 8]


def test_a_batch_is_its_requests_one_by_one():
    logits = torch.randn(12, 40, generator=torch.Generator().manual_seed(3)) * 4
    lengths = [5, 1, 0, 6]
    cut = pruning(eos=tuple(range(6)))
    batch = build_all(logits, lengths, cut)
    alone = [build_lattice(rows, cut) for rows in logits.split(lengths)]
    for one, other in zip(batch, alone, strict=True):
        assert one.num_tokens_before_eos == other.num_tokens_before_eos
        for name in ("token_ids", "logprobs", "num_candidates"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 1.0), st.integers(1, 12))
def test_columns_are_the_shortest_that_reach_tau(seed, tau, width):
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(seed)) * 3
    lattice = build_lattice(logits, pruning(tau=tau, width=width, eos=()))
    for row, probabilities in enumerate(logits.double().softmax(-1).numpy()):
        best = np.sort(probabilities)[::-1][:width]
        count = lattice.num_candidates[row]
        assert count == width or best[:count].sum() >= tau - 1e-5
        assert count == 1 or best[: count - 1].sum() < tau + 1e-5
        assert len(set(column(lattice, row))) == count
        np.testing.assert_allclose(np.exp(lattice.logprobs[row, :count]), best[:count], rtol=1e-4)


def test_runners_up_follow_the_candidates_if_requested():
    logits = logits_of({3: 0.9, 1: 0.06}, {7: 0.5, 2: 0.4})
    plain, wanting = build_all(logits.repeat(2, 1), [2, 2], pruning(width=2), [False, True])
    assert plain.token_ids.tolist() == [[3, -1], [7, -1]]
    assert wanting.token_ids.tolist() == [[3, 1], [7, 2]]
    assert wanting.num_candidates.tolist() == plain.num_candidates.tolist() == [1, 1]
    assert np.isfinite(wanting.logprobs).all()


def test_banned_ids_are_not_runners_up():
    logits = logits_of({1: 0.9})
    logits[:, 2:] = -torch.inf
    lattice = build_all(logits, [1], pruning(), [True])[0]
    assert lattice.token_ids[0].tolist()[:3] == [1, 0, -1]

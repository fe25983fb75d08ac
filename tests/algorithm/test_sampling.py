import math

import numpy as np
import pytest
import torch

from diffuspec.algorithm.draft_tree import chain, path_to
from diffuspec.algorithm.sampling import (
    choose_tokens,
    gumbel_noise,
    likeliest,
    perturb_logits,
    target_tokens,
    token_logprobs,
)
from diffuspec.algorithm.shaping import History
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, DraftTree, VerifyRequest
from tests.support.trees import merge_paths

PROBABILITIES = [0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005]
LOGITS = torch.tensor(PROBABILITIES).log()
EOS = (7,)
PREFIX = np.array([3, 1, 4, 1, 5], dtype=np.int32)
PREFIX.flags.writeable = False


NO_HISTORY = History(PREFIX, 3, ())


def draw(params, num_draws, logits=LOGITS, history=NO_HISTORY, start=0):
    rows = logits.expand(num_draws, -1)
    return choose_tokens(rows, params, range(start, start + num_draws), history)


def assert_distribution(tokens, expected):
    """Chi-square test at the 0.1 % level; tokens of probability 0 must never be drawn."""
    expected = np.asarray(expected)
    counts = np.bincount(tokens.numpy(), minlength=len(expected))
    possible = expected > 0
    assert counts[~possible].sum() == 0
    wanted = len(tokens) * expected[possible]
    chi_square = ((counts[possible] - wanted) ** 2 / wanted).sum()
    freedom = possible.sum() - 1
    # Wilson and Hilferty's approximation of the quantile; 3.09 is the normal one.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < limit


def normalised(weights):
    weights = np.asarray(weights, dtype=float)
    return weights / weights.sum()


@pytest.mark.parametrize("seed", [0, 1, -(2**63), 2**63 - 1])
def test_draws_follow_the_softmax(seed):
    assert_distribution(draw(SamplingParams(temperature=1, seed=seed), 20_000), PROBABILITIES)


def test_draws_over_seeds_at_one_position_follow_the_softmax():
    tokens = [draw(SamplingParams(temperature=1, seed=s), 1, start=9) for s in range(5_000)]
    assert_distribution(torch.cat(tokens), PROBABILITIES)


@pytest.mark.parametrize(
    ("params", "weights"),
    [
        ({"temperature": 0.5, "seed": 2}, np.array(PROBABILITIES) ** 2),
        ({"top_k": 4}, [*PROBABILITIES[:4], *[0] * 6]),
        ({"top_p": 0.8}, [*PROBABILITIES[:5], *[0] * 5]),  # 0.75 < 0.8 <= 0.83
        # Squared and cut to four: 0.554, 0.246, 0.138, 0.062.
        ({"temperature": 0.5, "top_k": 4, "top_p": 0.7}, [0.09, 0.04, *[0] * 8]),
    ],
    ids=["temperature sharpens", "top_k", "top_p", "top_p after temperature and top_k"],
)
def test_parameters_shape_the_distribution(params, weights):
    params = SamplingParams(**{"temperature": 1, "seed": 0, **params})
    assert_distribution(draw(params, 20_000), normalised(weights))


@pytest.mark.parametrize(
    ("top_p", "num_kept"), [(1e-9, 1), (0.5, 1), (0.501, 2), (0.75, 2), (0.76, 3), (0.9999, 3)]
)
def test_top_p_at_its_boundary(top_p, num_kept):
    logits = torch.tensor([[0.25, 0.5, 0.25, 0.0]]).log()
    shaped = perturb_logits(
        logits, SamplingParams(temperature=1, seed=0, top_p=top_p), [0], NO_HISTORY
    )
    assert torch.isfinite(shaped).tolist() == [[num_kept > 1, True, num_kept > 2, False]]


def test_top_k_and_top_p_keep_the_lowest_ids_of_ties():
    logits = torch.zeros(2, 1000)
    for params in (
        SamplingParams(temperature=1, seed=0, top_k=3),
        SamplingParams(temperature=1, seed=0, top_p=0.003),
    ):
        finite = torch.isfinite(perturb_logits(logits, params, [4, 5], NO_HISTORY))
        assert finite.nonzero().tolist() == [[r, i] for r in range(2) for i in range(3)]


def test_a_tiny_temperature_is_greedy():
    params = SamplingParams(temperature=1e-300, seed=0)
    assert draw(params, 50).tolist() == [0] * 50


def test_penalties_shape_the_distribution():
    params = SamplingParams(
        temperature=1, seed=0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2
    )
    history = History(PREFIX, 3, [(1, 9)] * 20_000)  # prompt 3 1 4, output 1 5 and then 1 9
    logits = LOGITS.double().numpy().copy()
    logits[[1, 3, 4, 5, 9]] *= 1.5  # all are negative
    for token, count in ((1, 2), (5, 1), (9, 1)):
        logits[token] -= 0.3 + 0.2 * count
    assert_distribution(draw(params, 20_000, history=history), normalised(np.exp(logits)))


def test_repetition_divides_positive_logits():
    params = SamplingParams(repetition_penalty=2.0)
    logits = torch.tensor([[4.0, -1.0, 2.5, -3.0]])
    history = History(np.array([0, 1], dtype=np.int32), 2, [()])
    assert perturb_logits(logits, params, [2], history).tolist() == [[2.0, -2.0, 2.5, -3.0]]
    assert choose_tokens(logits, params, [2], history).tolist() == [2]


def test_noise_does_not_depend_on_the_shape_of_the_batch():
    whole = gumbel_noise(7, range(40), 1003, "cpu")
    for position in (0, 1, 17, 39):
        assert torch.equal(gumbel_noise(7, [position], 1003, "cpu")[0], whole[position])
    assert torch.equal(gumbel_noise(7, [30, 2], 1003, "cpu"), whole[[30, 2]])
    assert torch.equal(gumbel_noise(7, torch.arange(40), 6, "cpu"), whole[:, :6])


def test_noise_is_a_fixed_function():
    """Changing these numbers would change the text of every seeded request."""
    noise = gumbel_noise(42, [0, 1000], 3, "cpu")
    reference = [
        [_reference_noise(42, position, token) for token in range(3)] for position in (0, 1000)
    ]
    assert noise.numpy() == pytest.approx(np.array(reference), rel=1e-5)


def _reference_noise(seed, position, token):
    """The same function in Python's integers."""
    word = 2**64 - 1

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ z >> 27) * 0x94D049BB133111EB & word
        return z ^ z >> 31

    golden = 0x9E3779B97F4A7C15
    start = mix(mix((position + 1) * golden & word) ^ seed & word)
    bits = mix(start + (token + 1) * golden & word) >> 32
    return -math.log(-math.log1p(-(bits + 0.5) / 2**32))


def test_noise_is_finite_and_gumbel():
    noise = gumbel_noise(1, range(50), 4000, "cpu").double()
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


@pytest.mark.parametrize("other", [(5, range(1, 201)), (6, range(200)), (-5, range(200))])
def test_noise_at_other_positions_and_seeds_is_independent(other):
    seed, positions = other
    one = gumbel_noise(5, range(200), 500, "cpu").flatten().double()
    two = gumbel_noise(seed, positions, 500, "cpu").flatten().double()
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1].item()) < 0.015  # 4.7 deviations


def test_noise_of_neighbouring_tokens_is_independent():
    noise = gumbel_noise(5, range(200), 501, "cpu").double()
    pairs = torch.stack([noise[:, :-1].flatten(), noise[:, 1:].flatten()])
    assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.015


def test_ties_go_to_the_lowest_id():
    logits = torch.zeros(3, 5000, dtype=torch.bfloat16)
    logits[:, [4000, 77, 4999]] = 1.0
    assert choose_tokens(logits, SamplingParams(), [0, 1, 2], NO_HISTORY).tolist() == [77, 77, 77]


def request(tree=EMPTY_TREE, **params):
    return VerifyRequest("r", PREFIX, 3, tree, SamplingParams(**params))


def rows_for(prefix_and_path):
    """Logits that depend on all tokens before: a hash of them is the seed."""
    seed = hash(tuple(prefix_and_path)) % 2**31
    return torch.randn(10, generator=torch.Generator().manual_seed(seed))


def rows_of(verify_request):
    tree = verify_request.tree
    paths = [path_to(tree, node) for node in range(-1, tree.num_nodes)]
    prefix = verify_request.prefix.tolist()
    return torch.stack([rows_for(prefix + [tree.token_ids[i] for i in path]) for path in paths])


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 6, "seed": 1},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.2, "seed": 0, "frequency_penalty": 0.7, "repetition_penalty": 1.1},
        {"temperature": 1.2, "seed": 0, "min_p": 0.3, "logit_bias": {2: 1.5, 7: -2}},
        {"min_tokens": 4, "stop_token_ids": (2,)},
        {"allowed_token_ids": (2, 5, 7)},
        {"allowed_token_ids": (1, 7), "temperature": 1.0, "seed": 2, "frequency_penalty": 0.5},
        {"bad_words_token_ids": ((2, 2, 5), (7,), (1, 5, 2)), "temperature": 1.0, "seed": 3},
    ],
)
def test_every_node_gets_the_token_of_decoding_one_at_a_time(params):
    tree = merge_paths([(2, 2, 5, 2), (2, 7, 7), (9,), (2, 2, 1)])
    verify = request(tree, **params)
    tokens = target_tokens(rows_of(verify), [verify], EOS, [None]).tolist()
    for row, node in enumerate(range(-1, tree.num_nodes)):
        said = [tree.token_ids[i] for i in path_to(tree, node)]
        prefix = np.array([*PREFIX.tolist(), *said], dtype=np.int32)
        alone = VerifyRequest("r", prefix, 3, EMPTY_TREE, verify.sampling)
        assert target_tokens(rows_of(alone), [alone], EOS, [None]).tolist() == [tokens[row]]


def test_a_batch_of_different_requests_is_its_requests_one_by_one():
    batch = [
        request(chain([1, 2]), temperature=0.9, seed=3),
        request(),
        request(DraftTree((4, 6, 6), (-1, -1, 0)), presence_penalty=2.0),
        request(chain([5]), temperature=1.0, seed=0, top_p=0.5),
        request(chain([5, 2]), logit_bias={3: 5}),
        request(chain([7, 2, 2]), temperature=0.9, seed=-4),
        request(temperature=1.0, seed=9, top_p=0.5),
        request(chain([3])),
    ]
    logits = torch.cat([rows_of(one) for one in batch])
    alone = [target_tokens(rows_of(one), [one], EOS, [None]) for one in batch]
    assert (
        target_tokens(logits, batch, EOS, [None] * len(batch)).tolist() == torch.cat(alone).tolist()
    )


def test_a_greedy_batch_takes_the_argmax():
    batch = [request(chain([1, 2])), request()]
    logits = torch.cat([rows_of(one) for one in batch])
    assert (
        target_tokens(logits, batch, EOS, [None] * len(batch)).tolist()
        == logits.argmax(-1).tolist()
    )


def test_likeliest_takes_the_lowest_id_of_ties_and_reports_nan():
    token_ids, logits = likeliest(torch.tensor([[0.5, 2.0, 2.0], [-1.0, torch.nan, 3.0]]))
    assert token_ids[0] == 1 and logits[0] == 2.0
    assert math.isnan(logits[1])


def test_a_drafter_with_the_same_noise_guesses_the_drawn_token():
    params = SamplingParams(temperature=1.0, seed=8)
    drawn = draw(params, 300)
    guesses = perturb_logits(LOGITS.expand(300, -1), params, range(300), NO_HISTORY).argmax(-1)
    assert torch.equal(drawn, guesses)
    assert (drawn != 0).float().mean() > 0.5  # where the likeliest token would mostly be wrong


def test_logprobs_are_those_of_the_unmodified_distribution():
    logits = torch.stack([LOGITS + 5, LOGITS.flip(0)])
    first, second = token_logprobs(logits, torch.tensor([2, 9]), 3)
    assert first.logprob == pytest.approx(math.log(0.15), abs=1e-5)
    assert [token for token, _ in first.top] == [0, 1, 2]
    assert second.top[0] == (9, pytest.approx(math.log(0.3), abs=1e-5))
    assert second.logprob == second.top[0][1]
    assert (first.rank, second.rank) == (3, 1)
    assert token_logprobs(logits, torch.tensor([2, 9]), 0)[0].top == ()


def test_a_chosen_token_has_the_last_rank_of_those_that_are_as_likely():
    [found] = token_logprobs(torch.tensor([[1.0, 3.0, 1.0, 0.0]]), torch.tensor([0]), 1)
    assert (found.rank, found.top[0][0]) == (3, 1)

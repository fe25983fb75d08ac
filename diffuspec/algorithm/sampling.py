"""The target's own token at every node, greedy or drawn with seeded noise.

Gumbel-max: argmax(shaped logits + Gumbel noise) is a draw from softmax(shaped logits). The noise is
a hash of seed, absolute position and token id alone: the target's token at a position, given the
tokens before it, does not depend on the draft, the batch or the worker. A drafter that adds the
same noise to its own logits guesses the drawn token, not the likeliest one.

`shaping` computes the distribution to draw from. Ties always go to the lowest token id.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.algorithm.draft_tree import depths
from diffuspec.algorithm.shaping import History, shape
from diffuspec.algorithm.transfers import to_device, to_host
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftTree, TokenIds, TokenLogprobs, VerifyRequest

_MAX_NOISE = 1 << 24  # values computed at a time, in several tensors of 64-bit integers
_NOTHING_BEFORE = History(np.empty(0, np.int32), 0, ())


def is_plain_argmax(requests: Sequence[VerifyRequest]) -> bool:
    """Return whether all requests take the argmax of unshaped logits."""
    return all(r.sampling.is_greedy and not r.sampling.shapes_logits for r in requests)


def likeliest(logits: Tensor) -> tuple[list[int], list[float]]:
    """Return each row's argmax, the lowest id of ties, and its logit; NaN if the row has a NaN."""
    if logits.device.type == "cpu":  # numpy is five times faster than torch here
        table = logits.float().numpy()
        token_ids: list[int] = table.argmax(axis=-1).tolist()
        return token_ids, [table.item(row, token_id) for row, token_id in enumerate(token_ids)]
    chosen = logits.argmax(dim=-1)
    return read_tokens(chosen, logits.gather(-1, chosen[:, None])[:, 0])


def read_tokens(token_ids: Tensor, logits: Tensor) -> tuple[list[int], list[float]]:
    """Return tokens and a logit of each, [R] on a device, in one copy."""
    ids, values = to_host(torch.stack((token_ids.double(), logits.double())))
    return ids.astype(int).tolist(), values.tolist()


def likeliest_ids(logits: Tensor, count: int) -> TokenIds:
    """Return each row's likeliest token ids, best first, [R, count]; fewer if V is smaller."""
    ids = logits.topk(min(count, logits.shape[-1]), dim=-1).indices
    found: TokenIds = ids.to(torch.int32).cpu().numpy()
    return found


def target_tokens(
    logits: Tensor,
    requests: Sequence[VerifyRequest],
    eos_token_ids: Collection[int],
    masks: Sequence[NDArray[np.uint8] | None],
) -> Tensor:
    """Return the target's token at the root and every node of each request, [R] int64.

    logits [R, V] holds, request by request, the row of the last prefix token and then the rows of
    the tree's nodes in order. masks has an entry for each request: the masks of its rows if it has
    a structured output (see `History`). The result stays on the logits' device.
    """
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    nodes = [_nodes(request) for request in requests]
    first = [0, *itertools.accumulate(map(len, nodes))]
    for members in _sampled_alike(requests):
        params = requests[members[0]].sampling
        if params.shapes_logits:
            [one] = members
            request, own = requests[one], slice(first[one], first[one + 1])
            paths = _paths(request.tree)
            history = History(request.prefix, request.num_prompt_tokens, paths, masks[one])
            chosen[own] = choose_tokens(logits[own], params, nodes[one], history, eos_token_ids)
            continue
        rows = [row for one in members for row in range(first[one], first[one + 1])]
        positions = [position for one in members for position in nodes[one]]
        seeds = [requests[one].sampling.seed or 0 for one in members for _ in nodes[one]]
        where = to_device([rows, positions, seeds], logits.device, np.int64)
        most = max(1, _MAX_NOISE // logits.shape[-1])
        for row, position, seed in torch.split(where, most, dim=1):
            chosen[row] = choose_tokens(logits[row], params, position, _NOTHING_BEFORE, seed=seed)
    return chosen


def _nodes(request: VerifyRequest) -> list[int]:
    """Return the positions of the tokens that follow the root and each node."""
    num_tokens = len(request.prefix)
    return [num_tokens, *(num_tokens + depth for depth in depths(request.tree))]


def _sampled_alike(requests: Sequence[VerifyRequest]) -> list[list[int]]:
    """Return the indices of the requests, in groups whose rows are shaped alike."""
    groups: dict[object, list[int]] = {}
    for place, request in enumerate(requests):
        sampling = request.sampling
        alike = sampling.temperature, sampling.min_p, sampling.top_k, sampling.top_p
        groups.setdefault(place if sampling.shapes_logits else alike, []).append(place)
    return list(groups.values())


def choose_tokens(
    logits: Tensor,
    params: SamplingParams,
    positions: Sequence[int] | Tensor,
    history: History,
    eos_token_ids: Collection[int] = (),
    seed: Tensor | None = None,
) -> Tensor:
    """Return the token drawn at each row, [R] int64; see `perturb_logits`."""
    return _argmax(perturb_logits(logits, params, positions, history, eos_token_ids, seed))


def perturb_logits(
    logits: Tensor,
    params: SamplingParams,
    positions: Sequence[int] | Tensor,
    history: History,
    eos_token_ids: Collection[int] = (),
    seed: Tensor | None = None,
) -> Tensor:
    """Return shaped logits plus the request's noise, [R, V]: their argmax is the drawn token.

    positions[r] is the absolute index that row r's token will have in the sequence. Greedy requests
    get no noise. A drafter takes the softmax of the result as its distribution of the token that
    the target will draw. seed: one for each row, [R] int64, instead of the parameters' seed.
    """
    shaped = shape(logits, params, positions, history, eos_token_ids)
    if params.is_greedy:
        return shaped
    own = params.seed if seed is None else seed
    assert own is not None, "sampled requests get a seed on admission"
    return shaped + gumbel_noise(own, positions, shaped.shape[-1], shaped.device)


def token_logprobs(logits: Tensor, chosen: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Return each row's log-probabilities of its chosen token and of the num_top likeliest.

    logits [R, V] are the model's own, before penalties, temperature and filters. A chosen token's
    rank counts all tokens that are at least as likely.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    chosen_logprobs = logprobs.gather(-1, chosen[:, None])
    own: list[float] = chosen_logprobs[:, 0].tolist()
    ranks: list[int] = (logprobs >= chosen_logprobs).sum(dim=-1).tolist()
    values, ids = logprobs.topk(min(num_top, logprobs.shape[-1]), dim=-1)
    tops = [
        tuple(zip(row_ids, row, strict=True))
        for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    return [TokenLogprobs(*row) for row in zip(own, tops, ranks, strict=True)]


def _argmax(logits: Tensor) -> Tensor:
    if logits.device.type == "cpu":  # numpy is five times faster than torch here
        return torch.from_numpy(logits.float().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Return the tokens from the prefix down to the root and to every node."""
    paths: list[tuple[int, ...]] = [()]
    for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
        paths.append((*paths[parent + 1], token_id))
    return paths


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # splitmix64's increment, as a signed 64-bit integer
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def gumbel_noise(
    seed: int | Tensor,
    positions: Sequence[int] | Tensor,
    vocab_size: int,
    device: torch.device | str,
) -> Tensor:
    """Return standard Gumbel noise, [R, vocab_size] float32; row r is for positions[r].

    seed: one for all rows, or one for each, [R] int64 on the device.

    Each value depends only on seed, position and token id: a splitmix64 generator starts at a hash
    of seed and position and takes as many steps as the token id. The top 32 bits of each 64-bit
    output give u in (0, 1), and -log(-log(1 - u)) is Gumbel-distributed. The large values, which
    win, come from small u, where float32 is finest. The values do not depend on vocab_size.
    """
    rows = _positions_on(torch.device(device), positions)
    start = _mix(_mix((rows + 1) * _GOLDEN) ^ seed)  # [R]; int64 arithmetic wraps around
    steps = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _GOLDEN
    bits = _mix(start[:, None] + steps)
    uniform = _logical_shift(bits, 32).float().add_(0.5).mul_(2.0**-32)
    uniform.clamp_(max=1 - 2.0**-24)  # the largest float32 below 1
    exponential = uniform.neg_().log1p_().neg_()  # -log(1 - u)
    return exponential.log_().neg_()


def _positions_on(device: torch.device, positions: Sequence[int] | Tensor) -> Tensor:
    if isinstance(positions, Tensor):
        return positions.to(device, torch.int64)
    return to_device(positions, device, np.int64)


def _mix(values: Tensor) -> Tensor:
    """Apply splitmix64's finaliser to int64 values in place, and return them.

    A bijection in which every input bit flips each output bit with probability 1/2.
    """
    values.bitwise_xor_(_logical_shift(values, 30)).mul_(_MIX_1)
    values.bitwise_xor_(_logical_shift(values, 27)).mul_(_MIX_2)
    return values.bitwise_xor_(_logical_shift(values, 31))


def _logical_shift(values: Tensor, num_bits: int) -> Tensor:
    """Shift right and fill with zeros; torch would copy the sign bit."""
    return (values >> num_bits).bitwise_and_((1 << (64 - num_bits)) - 1)

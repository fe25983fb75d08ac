"""Requests are recognised by their tokens, wherever an engine puts them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from diffuspec_client.tracking import Tokens, Tracker, _Tracked


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_a_request_keeps_its_name_as_it_grows():
    tracker = Tracker()
    [first], _ = tracker.match([0], [tokens(1, 2)])
    [second], ended = tracker.match([0], [tokens(1, 2, 3, 4)])
    assert first == second and not ended


def test_requests_keep_their_names_when_rows_change_places():
    tracker = Tracker()
    a, b = tokens(1, 2), tokens(3, 4)
    names, _ = tracker.match([0, 1], [a, b])
    swapped, _ = tracker.match([0, 1], [tokens(3, 4, 5), tokens(1, 2, 5)])
    assert swapped == names[::-1]


def test_a_new_request_in_the_row_of_another_has_a_new_name():
    tracker = Tracker()
    [first], _ = tracker.match([0], [tokens(1, 2, 3)])
    [second], _ = tracker.match([0], [tokens(1, 2, 4)])
    [third], _ = tracker.match([0], [tokens(1, 2)])
    assert len({first, second, third}) == 3


def test_a_request_that_is_in_no_row_for_a_while_has_ended():
    tracker = Tracker()
    [name], _ = tracker.match([0], [tokens(1, 2)])
    found = [tracker.match([], [])[1] for _ in range(8)]
    assert [one for one in found if one] == [[name]]


def test_a_request_that_pauses_is_recognised_when_it_is_back():
    tracker = Tracker()
    names, _ = tracker.match([0, 1], [tokens(1, 2), tokens(3, 4)])
    tracker.match([0], [tokens(1, 2, 9)])
    back, _ = tracker.match([0, 1], [tokens(1, 2, 9, 9), tokens(3, 4)])
    assert back == names


@pytest.mark.parametrize("seed", range(20))
def test_what_a_name_stood_for_is_what_it_goes_on_from(seed: int):
    """Rows move, end, pause and begin, many with the same beginning; few ids, so that they meet."""
    rng = random.Random(seed)
    tracker, requests, held = Tracker(), dict[int, list[int]](), dict[str, list[int]]()
    next_id = 0
    for _ in range(200):
        if len(requests) < 6 and rng.random() < 0.3:
            requests[next_id] = [1, *[rng.randrange(2) for _ in range(rng.randrange(3))]]
            next_id += 1
        for one in [*requests]:
            requests[one] += [rng.randrange(2) for _ in range(rng.randrange(1, 4))]
            if rng.random() < 0.05:
                del requests[one]
        order = [one for one in requests if rng.random() < 0.9]
        rng.shuffle(order)
        names, ended = tracker.match([*range(len(order))], [tokens(*requests[o]) for o in order])
        assert len(set(names)) == len(names) and not {*ended} & {*names}
        for name, one in zip(names, order, strict=True):
            before = held.get(name, [])
            assert requests[one][: len(before)] == before
            held[name] = [*requests[one]]


def test_rows_that_are_all_reordered_are_each_compared_with_few_requests(
    monkeypatch: pytest.MonkeyPatch,
):
    compared: list[int] = []
    is_in = _Tracked.is_in

    def counted(one: _Tracked, prefix: Tokens) -> bool:
        compared.append(one.num_tokens)
        return is_in(one, prefix)

    rng = random.Random(7)
    texts = [[1, 2, 3, *[rng.randrange(4096) for _ in range(20)]] for _ in range(256)]
    tracker = Tracker()
    names, _ = tracker.match([*range(256)], [tokens(*text) for text in texts])
    monkeypatch.setattr(_Tracked, "is_in", counted)
    order = rng.sample(range(256), 256)
    grown = [tokens(*texts[one], 5, 6) for one in order]
    moved, ended = tracker.match([*range(256)], grown)
    assert moved == [names[one] for one in order] and not ended
    assert len(compared) < 3 * 256

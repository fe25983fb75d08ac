"""The requests of a soak: seeded, of every kind, few distinct ones."""

from itertools import islice

from benchmarks.soak.mixture import Kind, Mixture, Request


def first(client: int, count: int, seed: int = 0, limit: int | None = None) -> list[Request]:
    return list(islice(Mixture(seed, limit).requests(client), count))


def test_a_seed_gives_each_client_the_same_requests_in_the_same_order():
    assert first(0, 50) == first(0, 50)
    assert first(0, 50) != first(1, 50)
    assert first(0, 50) != first(0, 50, seed=1)


def test_every_kind_is_sent():
    assert {request.kind for request in first(0, 400)} == set(Kind)


def test_equal_names_mean_equal_bodies_and_the_right_answers_are_few():
    mixture = Mixture(0)
    bodies = {request.name: request.body for request in mixture.answered}
    assert len(bodies) == len(mixture.answered) == 92
    for request in islice(mixture.requests(3), 400):
        if request.kind is not Kind.BAD:
            assert request.body == bodies[request.name]


def test_clients_leave_only_in_aborted_streams():
    for request in first(0, 400):
        assert (request.left_after is not None) == (request.kind is Kind.ABORT)
        assert request.is_streamed or request.left_after is None


def test_a_limit_bounds_the_distinct_requests_of_a_kind():
    assert len(Mixture(0, limit=1).answered) == len(Kind) - 1
    assert {request.name for request in first(0, 200, limit=1)} >= {"stream 0", "no messages"}

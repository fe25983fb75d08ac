"""What is kept for requests is bounded by their number."""

from diffuspec.algorithm.per_request import PerRequest


def test_the_latest_are_kept() -> None:
    kept: PerRequest[list[int]] = PerRequest(list, 2)
    first = kept.of("a")
    kept.of("b")
    assert kept.of("a") is first
    kept.of("c")
    assert kept.request_ids == ["a", "c"]
    kept.release("a")
    kept.release("unknown")
    assert kept.request_ids == ["c"]
    kept.clear()
    assert kept.request_ids == []

from collections.abc import Sequence

def expand(
    model: int, states: Sequence[bytes], token_ids: Sequence[int], /
) -> tuple[list[list[float]], list[list[bytes]]]: ...

def normalise(
    type: int,
    inputs: int,
    added: int,
    weight: int,
    sums: int,
    outputs: int,
    num_rows: int,
    width: int,
    epsilon: float,
    /,
) -> None: ...
def rotate(
    type: int,
    rows: int,
    cos: int,
    sin: int,
    num_rows: int,
    row_stride: int,
    num_heads: int,
    dim: int,
    /,
) -> None: ...
def gate(type: int, inputs: int, outputs: int, num_rows: int, width: int, /) -> None: ...
def attend(
    type: int,
    num_threads: int,
    queries: int,
    query_head_stride: int,
    query_row_stride: int,
    new_keys: int,
    new_values: int,
    new_head_stride: int,
    new_row_stride: int,
    keys: int,
    values: int,
    pages: int,
    page_stride: int,
    cache_head_stride: int,
    outputs: int,
    num_rows: int,
    num_heads: int,
    num_kv_heads: int,
    dim: int,
    start: int,
    base: int,
    order: int,
    starts: int,
    counts: int,
    columns: int,
    positions: int,
    scaling: float,
    window: int,
    has_transposed_keys: int,
    /,
) -> None: ...
def find_largest(
    logits: int, columns: int, logprobs: int, num_rows: int, width: int, count: int, /
) -> None: ...
def has_tiles() -> bool: ...
def has_bfloat16_vectors() -> bool: ...
def own_level() -> int: ...
def level() -> int: ...
def use_level(lower: int) -> None: ...
def multiply(
    type: int,
    num_threads: int,
    matrix: int,
    inputs: int,
    outputs: int,
    num_rows: int,
    /,
) -> None: ...
def decode(
    type: int,
    num_threads: int,
    layers: int,
    num_layers: int,
    inputs: int,
    cos: int,
    sin: int,
    outputs: int,
    num_rows: int,
    pieces: int,
    num_pieces: int,
    /,
) -> None: ...

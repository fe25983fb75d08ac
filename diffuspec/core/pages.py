"""The unit of the target's cache: a page of rows, one for each token."""

from __future__ import annotations

from typing import NamedTuple

# Rows of a page: the columns that our kernels sum together (kBlock in cpu/attention.h, BLOCK in
# triton/kernels.py), so that no sum depends on where a page is.
PAGE_SIZE = 64


class PageUse(NamedTuple):
    """The use of a cache's pages after a step."""

    num_free: int  # pages that no request uses; some may be kept in case their prefix comes again
    num_shared: int  # pages that several requests use


def num_pages_of(num_rows: int) -> int:
    """Return the number of pages that hold some rows."""
    return -(-num_rows // PAGE_SIZE)

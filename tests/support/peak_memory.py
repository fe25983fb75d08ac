"""A program that prints how much memory loading takes: `python -m tests.support.peak_memory`.

Arguments are models. The first takes what any does; a line is printed for each of the others.
"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

from diffuspec.core.memory import release_freed
from diffuspec.models.loading.load import load_model


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _peak_of(path: str) -> int:
    """Return how many bytes more there were at most while a model was loaded."""
    gc.collect()
    release_freed()
    Path("/proc/self/clear_refs").write_text("5")  # begins to count the peak anew
    before = _status("VmRSS")
    load_model(Path(path), device="cpu", max_sequences=1, max_len=64)
    return _status("VmHWM") - before


if __name__ == "__main__":
    for peak in [_peak_of(path) for path in sys.argv[1:]][1:]:
        print(peak)

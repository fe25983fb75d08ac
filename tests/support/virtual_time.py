"""Virtual time for tests, and a clock that is set by hand."""

from diffuspec.bench.planning.loop import VirtualTimeLoop, run_in_virtual_time

__all__ = ["Clock", "VirtualTimeLoop", "run_in_virtual_time"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

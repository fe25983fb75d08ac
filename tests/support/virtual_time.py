"""Virtual time for tests: see `diffuspec.bench.virtual_time.loop`."""

from diffuspec.bench.virtual_time.loop import VirtualTimeLoop, run_in_virtual_time

__all__ = ["VirtualTimeLoop", "run_in_virtual_time"]

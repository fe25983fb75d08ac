"""Data parallelism: several engines, each in its own process, behind one interface."""

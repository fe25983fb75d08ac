"""Conversion between values and messages, batches as prefix deltas, and status codes."""

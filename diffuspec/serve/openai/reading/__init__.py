"""Parses answers as they arrive: reasoning, content and calls, in the formats of models."""

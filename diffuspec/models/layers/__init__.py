"""Layers that take the place of those that transformers makes."""

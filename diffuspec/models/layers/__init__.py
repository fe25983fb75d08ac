"""Layers that replace those of transformers."""

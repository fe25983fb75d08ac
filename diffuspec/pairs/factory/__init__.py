"""Trains a diffusion drafter for any causal LM: the target's answers, training, export."""

"""Trains the target and the drafter of the embedded pair."""

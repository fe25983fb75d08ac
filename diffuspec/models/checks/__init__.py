"""Checks of a model that has just been loaded."""

"""Trains draft heads for a target: one module for each kind, and one that trains any kind."""

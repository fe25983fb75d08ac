"""Hostile clients of a service: the answers that they get, and how long others wait meanwhile."""

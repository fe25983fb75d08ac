"""Hostile clients of a service: what they are answered, and what others wait for meanwhile."""

"""Real clients of the APIs, each in an environment of its own, against a running service."""

"""The embedded pair: its corpus, and the training of its models."""

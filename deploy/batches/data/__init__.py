"""Batches beyond one reader: parts of the input, answered by several pipelines through Ray Data."""

"""Batches: rows of a JSONL file in, one result per row out. Results so far survive a kill.

Nothing here depends on Ray: `deploy.batch` passes in a `Service` that answers.
"""

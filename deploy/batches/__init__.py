"""Batches: rows of a JSONL file in, one result for each out, and what was done survives a kill.

Nothing here knows Ray: `deploy.batch` gives it a `Service` that answers.
"""

"""One target spread over several processes (ranks) that take the same steps."""

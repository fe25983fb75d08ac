"""Random forms of answers, sent to a service."""

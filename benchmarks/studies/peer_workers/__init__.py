"""Engines driven by lines of JSON, each in its own process: see `benchmarks.studies.peers`.

A worker is started with a model, a number of threads, and a clock: wall, or processor for processor
time. When it is ready it writes a line. Each line of its stdin is {"prompt": [token ids],
"max_tokens": N, "drafts": false}; each is answered by a line of its stdout, {"tokens": [...],
"first_seconds": s, "seconds": s}: the greedy answer up to an end-of-text token, the time to its
first token, and the total time.
"""

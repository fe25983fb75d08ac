"""Engines behind lines of JSON, each in a process of its own: see `diffuspec.bench.studies.peers`.

A worker is started with a model, a number of threads, and a clock: wall, or processor for the time
that the process has computed. Once it is ready it writes a line. Each line of its stdin is
{"prompt": [token ids], "max_tokens": N, "drafts": false}; each is answered by a line of its
stdout, {"tokens": [...], "first_seconds": s, "seconds": s}: the answer, greedy and up to an end of
text, the time to its first token, and all of the time.
"""

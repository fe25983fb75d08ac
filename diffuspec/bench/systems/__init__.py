"""The systems compared by the benchmark.

Ours share one engine, and so one target, and differ in how they draft. Those of transformers run
`generate` on a second copy of the same weights, with the same number of threads and the same EOS
ids.
"""

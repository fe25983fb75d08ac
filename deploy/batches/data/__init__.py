"""Large batches: the input is split into parts, which several pipelines answer through Ray Data."""

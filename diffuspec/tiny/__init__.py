"""The embedded `tiny` model pair: its corpus, tokenizer, models and training."""

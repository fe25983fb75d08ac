"""Conversion between text and token ids: prompts, tokenizers, incremental detokenisation."""

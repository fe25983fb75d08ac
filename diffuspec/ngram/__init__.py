"""The n-gram causal proxy: estimation over token ids, ARPA files, and scoring through KenLM."""

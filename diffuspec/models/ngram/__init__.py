"""N-gram models over token ids: estimation, ARPA files, scoring by KenLM."""

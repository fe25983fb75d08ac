"""The key-value cache: pages of memory, a table of them for each sequence, and kept prefixes."""

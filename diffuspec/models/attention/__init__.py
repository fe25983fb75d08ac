"""Attention of packed rows over a key-value cache of our own."""

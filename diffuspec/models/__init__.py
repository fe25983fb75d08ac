"""The target and the drafter, on transformers' modelling code and a cache of our own."""

"""The target and the drafter, with transformers' modelling code and our own cache."""

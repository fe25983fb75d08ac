"""Several processes that hold one model and take the same steps."""

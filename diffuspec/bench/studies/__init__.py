"""Studies of `diffuspec bench`: the paper's ablations, load, pre-drafting."""

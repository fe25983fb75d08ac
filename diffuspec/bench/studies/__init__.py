"""Studies: the paper's ablations, load, pre-drafting, and comparisons with other engines."""

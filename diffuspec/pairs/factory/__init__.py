"""Makes a diffusion drafter for any causal LM: answers of the target, training, export."""

"""diffuspec: lossless speculative decoding with a diffusion language model as drafter."""

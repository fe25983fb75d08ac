"""Kernels for rows on a GPU, in Triton, which a torch for CUDA brings along."""

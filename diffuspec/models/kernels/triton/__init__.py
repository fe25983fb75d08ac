"""Triton kernels for rows on a GPU. A CUDA build of torch includes Triton."""

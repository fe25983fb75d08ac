"""Loads model directories: checks, safetensors, tensor parallelism, layers for CPUs."""

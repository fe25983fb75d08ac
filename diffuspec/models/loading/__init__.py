"""From a directory to a model: checks, safetensors, tensor parallelism."""

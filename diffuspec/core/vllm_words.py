"""Options of `vllm serve`: our names for them, or advice where there is no counterpart."""

from __future__ import annotations

ALIASES = {  # our options by vLLM's names; a command has the aliases of its options
    "--model": "--target",
    "--max-num-seqs": "--max-sequences",
    "--served-model-name": "--model-name",
    "--num-speculative-tokens": "--draft-length",
    "--speculative-model": "--drafter",
    "--ssl-certfile": "--tls-certificate",
    "--ssl-keyfile": "--tls-key",
}

_CACHE = (
    "the key target.cache_memory of --config FILE.yaml sizes the cache: up to 1 the share of the"
    " memory that weights and cache take together, above 1 bytes"
)
_RANKS = (
    "`diffuspec ray serve --config FILE.yaml` runs the target on several GPUs, as many as the key"
    " tensor_parallel of its section verifier says (docs/serving.md)"
)
_SERVED = (
    "`diffuspec ray serve --config FILE.yaml` serves several engines on one machine, as many as its"
    " key num_replicas of Pipeline says: see deploy/serve_together.yaml and docs/serving.md"
)
_BY_REQUEST = "requests set it, and the options of `diffuspec generate`"

HINTS = {  # advice, by options that have no counterpart
    "--api-key": "other users can read arguments in the list of processes: `diffuspec keys add"
    " keys.yaml NAME` writes a key to a file for --api-keys, and clients such as `diffuspec load`"
    " read it from the environment variable DIFFUSPEC_API_KEY",
    "--data-parallel-size": _SERVED,
    "--disable-log-requests": "requests are not logged",
    "--enable-auto-tool-choice": "tool calls are parsed without it, in the format of the chat"
    " template or of --tool-call-parser",
    "--enable-chunked-prefill": "long prompts are always read in parts: leave it out",
    "--enable-prefix-caching": "prefixes are always cached: leave it out",
    "--enforce-eager": "the answers are the same with CUDA graphs: leave it out",
    "--gpu-memory-utilization": _CACHE,
    "--hf-token": "models are directories: fetch one by `hf download`",
    "--kv-cache-dtype": "the cache has the type of the target: --dtype",
    "--max-num-batched-tokens": "the key coordinator.prefill_chunk_tokens of --config FILE.yaml"
    " bounds the tokens of a prompt that are read at once",
    "--no-enable-prefix-caching": "prefixes are always cached, and change no answer: leave it out",
    "--num-gpu-blocks-override": _CACHE,
    "--pipeline-parallel-size": f"layers are not spread over GPUs, but each layer is: {_RANKS}",
    "--quantization": "weights are run in the format in which they are stored: give --target a GGUF"
    " file, or a directory whose config.json names its quantisation",
    "--revision": "models are directories: `hf download NAME --revision R` fetches one",
    "--seed": _BY_REQUEST,
    "--swap-space": _CACHE,
    "--task": "targets are causal language models that generate text: leave it out",
    "--tensor-parallel-size": _RANKS,
    "--tokenizer": "the tokenizer is the one in the target's directory: leave it out",
    "--trust-remote-code": "no code of a model is run; docs/usage.md lists the models that can be"
    " targets without it",
}

"""Runs vLLM in its own environment, driven by lines of JSON; see `benchmarks.studies.vllm`.

    python vllm_worker.py MODEL DTYPE MAX_SEQUENCES SPECULATIVE_CONFIG SETTINGS [--eager] [--v2]

SETTINGS: further arguments of vLLM's LLM, a JSON object.

With --eager vLLM compiles nothing and starts a minute sooner. With --v2 it uses its model runner V2
with async scheduling, whose kernels Triton interprets: slow, but needs no GPU.

Each line of stdin is {"prompts": [token ids], "max_tokens": N, "num_at_once": N, "seeds": [...],
"forgets": whether the prefix cache is emptied before}; each is answered by a line of stdout with
the tokens, the seconds, those after the first tokens, the prompts' tokens found in a cache, the
preemptions, and vLLM's counts of drafts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

MAX_MODEL_LEN = 2048


def answer(llm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts of a line, at most num_at_once at a time."""
    from vllm import SamplingParams

    temperature = asked.get("temperature", 0.0)
    seeds = asked.get("seeds") or [None] * len(asked["prompts"])
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]]
    params = [
        SamplingParams(temperature=temperature, max_tokens=asked["max_tokens"], seed=seed)
        for seed in seeds
    ]
    before, started, outputs = counts(llm), time.monotonic(), []
    if asked.get("forgets"):
        llm.reset_prefix_cache()
    size = asked["num_at_once"]
    if size == 1:
        for prompt, one in zip(prompts, params, strict=True):
            outputs += llm.generate([prompt], [one], use_tqdm=False)
    else:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.monotonic() - started
    after = counts(llm)
    return {
        "tokens": [[*one.outputs[0].token_ids] for one in outputs],
        "seconds": seconds,
        "decode_seconds": sum(
            output.metrics.last_token_ts - output.metrics.first_token_ts for output in outputs
        ),
        "num_cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs),
        "num_preemptions": sum(output.metrics.num_preemptions for output in outputs),
        "counts": {name: after[name] - before.get(name, 0) for name in after},
    }


def counts(llm: Any) -> dict[str, int]:
    """Return vLLM's counts of drafts so far."""
    prefix = "vllm:spec_decode_"
    return {
        one.name.removeprefix(prefix): one.value
        for one in llm.get_metrics()
        if one.name.startswith(prefix) and hasattr(one, "value")
    }


def use_model_runner_v2() -> None:
    """Make vLLM use its model runner V2 as on a GPU. Call this before vLLM is imported."""
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    from triton.backends import backends

    # vLLM uses Triton on a CPU only if there is a backend of this name
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    from vllm.platforms.cpu import CpuPlatform

    check: Any = CpuPlatform.check_and_update_config

    def check_and_schedule_ahead(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True  # switched off on CPUs, as of no use there

    CpuPlatform.check_and_update_config = staticmethod(check_and_schedule_ahead)  # type: ignore[method-assign,assignment]


def main() -> None:
    model, dtype, max_sequences, speculative, settings, *flags = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")  # vLLM prints to stdout, which goes to stderr from here on
    os.dup2(2, 1)
    if "--v2" in flags:
        use_model_runner_v2()
    from vllm import LLM

    llm = LLM(
        model,
        dtype=dtype,
        max_num_seqs=int(max_sequences),
        speculative_config=json.loads(speculative),
        additional_config={"diffuspec": {}},  # as the environment says
        disable_log_stats=False,
        enforce_eager="--eager" in flags,
        seed=0,
        **{
            "enable_prefix_caching": False,
            "max_model_len": MAX_MODEL_LEN,
            **json.loads(settings),
        },
    )
    print(json.dumps({"is_ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()

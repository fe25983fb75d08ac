"""`python openvino_worker.py MODEL THREADS CLOCK`: OpenVINO GenAI, in its own environment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import openvino_genai


class FirstToken(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Records when the first token of an answer arrived."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.time: float | None = None

    def write(self, tokens: object) -> Any:
        self.time = self.time or self._clock()
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Do nothing: the answer is also returned as a whole."""


def answer(pipeline: Any, asked: dict[str, Any], clock: Callable[[], float]) -> dict[str, Any]:
    ids = np.array([asked["prompt"]], np.int64)
    inputs = openvino_genai.TokenizedInputs(
        openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
    )
    config = pipeline.get_generation_config()
    config.max_new_tokens, config.do_sample = asked["max_tokens"], False
    first, started = FirstToken(clock), clock()
    tokens = pipeline.generate(inputs, config, first).tokens[0]
    ended = clock()
    return {
        "tokens": [int(one) for one in tokens],
        "first_seconds": (first.time or ended) - started,
        "seconds": ended - started,
    }


def main() -> None:
    pipeline = openvino_genai.LLMPipeline(
        sys.argv[1], "CPU", INFERENCE_NUM_THREADS=int(sys.argv[2])
    )
    clock = {"wall": time.monotonic, "processor": time.process_time}[sys.argv[3]]
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(pipeline, json.loads(line), clock)), flush=True)


if __name__ == "__main__":
    main()

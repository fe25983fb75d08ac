"""Parameters of a request that its answer in /v1/responses repeats."""

from __future__ import annotations

from diffuspec.core.params import SamplingParams
from diffuspec.serve.responses.bodies import ReasoningOptions, ResponsesBody, TextOptions
from diffuspec.serve.responses.objects import RepeatedParameters, ResponseText


def repeated(body: ResponsesBody, sampling: SamplingParams) -> RepeatedParameters:
    """Return the parameters of a request, with defaults for those that are not given."""
    choice = body.tool_choice or "auto"
    reasoning = body.reasoning or ReasoningOptions()
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": _text(body.text or TextOptions()),
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "truncation": "disabled",
        "previous_response_id": None,
        "background": False,
        "store": False,
        "service_tier": "default",
    }


def _text(options: TextOptions) -> ResponseText:
    text: ResponseText = {"format": options.format or {"type": "text"}}
    if options.verbosity is not None:
        text["verbosity"] = options.verbosity
    return text

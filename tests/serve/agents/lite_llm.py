"""LiteLLM asks for the weather, whole and streamed: lite_llm.py URL MODEL."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def ask(url: str, model: str, *, streams: bool) -> tuple[list[str], str]:
    """Return the cities asked for and the last text of a conversation."""
    messages: list[Any] = [{"role": "user", "content": "Weather in Ulm?"}]
    cities: list[str] = []
    while True:
        answer: Any = litellm.completion(
            model=f"openai/{model}",
            api_base=url,
            api_key="none",
            messages=messages,
            tools=[WEATHER],
            stream=streams,
            max_retries=0,
        )
        if streams:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return cities, message.content
        for call in message.tool_calls:
            cities.append(json.loads(call.function.arguments)["city"])
            result = {"role": "tool", "tool_call_id": call.id, "content": "22 degrees"}
            messages.append(result)


def main(url: str, model: str) -> None:
    found = [ask(url, model, streams=streams) for streams in (False, True)]
    cities = [city for some, _ in found for city in some]
    print(json.dumps({"cities": cities, "texts": [text for _, text in found]}))


main(*sys.argv[1:])

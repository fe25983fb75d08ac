"""LangChain asks for the weather, whole and streamed, and for 20 texts: langchain.py URL MODEL."""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI


@tool
def weather(city: str) -> str:
    """Get the weather of a city."""
    return "22 degrees"


def ask(model: Any, *, streams: bool) -> tuple[list[str], str]:
    """Return the cities asked for and the last text of a conversation."""
    messages: list[Any] = [HumanMessage("Weather in Ulm?")]
    cities: list[str] = []
    while True:
        if streams:
            parts = list(model.stream(messages))
            answer = parts[0]
            for part in parts[1:]:
                answer += part
        else:
            answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return cities, answer.content
        for call in answer.tool_calls:
            cities.append(call["args"]["city"])
            messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))


def main(url: str, model: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model, max_retries=0, temperature=0)
    cities, texts = [], []
    for streams in (False, True):
        found, text = ask(chat.bind_tools([weather], strict=True), streams=streams)
        cities += found
        texts.append(text)
    plain = OpenAI(base_url=url, api_key="none", model=model, max_retries=0, temperature=0)
    generations = plain.generate([f"Number {n}" for n in range(20)]).generations
    print(json.dumps({"cities": cities, "texts": texts, "num_prompts": len(generations)}))


main(*sys.argv[1:])

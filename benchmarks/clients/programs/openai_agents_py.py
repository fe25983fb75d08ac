"""Asks a server, as openai-agents does, over both of its APIs; prints the results as JSON."""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]


called = []


@function_tool
def look_up(city: Literal["Paris", "Rome"]) -> str:
    """Look up a city."""
    called.append(city)
    return f"{city} is in Europe."


async def try_over(model) -> dict[str, bool]:
    question, usual = "What is the capital of France?", {"temperature": 0, "max_tokens": 256}
    settings, seen = ModelSettings(**usual), {}
    plain = Agent("plain", model=model, model_settings=settings)
    seen["text"] = bool((await Runner.run(plain, question)).final_output)
    stream = Runner.run_streamed(plain, question)
    seen["streams"] = len([event async for event in stream.stream_events()]) > 1
    forced = ModelSettings(**usual, tool_choice="required", parallel_tool_calls=False)
    agent = Agent(
        "tools",
        model=model,
        model_settings=forced,
        tools=[look_up],
        output_type=Answer,
        tool_use_behavior="stop_on_first_tool",
    )
    called.clear()
    await Runner.run(agent, question)
    seen["tools"] = bool(called)
    formed = Agent("forms", model=model, model_settings=settings, output_type=Answer)
    seen["forms"] = isinstance((await Runner.run(formed, question)).final_output, Answer)
    try:
        hot = ModelSettings(temperature=99)
        await Runner.run(Agent("errors", model=model, model_settings=hot), question)
    except BadRequestError as error:
        seen["errors"] = "temperature" in str(error)
    return seen


async def main() -> None:
    client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
    over_chats = await try_over(OpenAIChatCompletionsModel(sys.argv[2], client))
    over_responses = await try_over(OpenAIResponsesModel(sys.argv[2], client))
    both = over_chats.keys() | over_responses.keys()
    print(json.dumps({key: over_chats.get(key) and over_responses.get(key) for key in both}))


set_tracing_disabled(True)
asyncio.run(main())

"""The Agents SDK asks for the weather, whole and streamed: openai_agents.py URL MODEL."""

from __future__ import annotations

import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
cities: list[str] = []


@function_tool
def weather(city: str) -> str:
    """Get the weather of a city."""
    cities.append(city)
    return "22 degrees"


async def main(url: str, model: str) -> None:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    chosen = OpenAIChatCompletionsModel(model=model, openai_client=client)
    agent = Agent(name="Guide", instructions="Be brief.", tools=[weather], model=chosen)
    whole = await Runner.run(agent, "Weather in Ulm?")
    streamed = Runner.run_streamed(agent, "Weather in Ulm?")
    async for _ in streamed.stream_events():
        pass
    texts = [whole.final_output, streamed.final_output]
    print(json.dumps({"cities": cities, "texts": texts}))


asyncio.run(main(*sys.argv[1:]))

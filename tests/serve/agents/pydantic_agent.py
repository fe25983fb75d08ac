"""pydantic-ai asks for the weather, whole and streamed: pydantic_agent.py URL MODEL."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

cities: list[str] = []


async def main(url: str, model: str) -> None:
    chosen = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(chosen, instructions="Be brief.")

    @agent.tool_plain
    def weather(city: str) -> str:
        """Get the weather of a city."""
        cities.append(city)
        return "22 degrees"

    whole = await agent.run("Weather in Ulm?")
    streamed = await agent.run("Weather in Ulm?", event_stream_handler=read)
    print(json.dumps({"cities": cities, "texts": [whole.output, streamed.output]}))


async def read(context: object, events: AsyncIterable[object]) -> None:
    """Read a stream to its end: with a reader, answers are streamed."""
    async for _ in events:
        pass


asyncio.run(main(*sys.argv[1:]))

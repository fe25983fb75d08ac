"""pydantic-ai asks for the weather, whole and streamed: pydantic_agent.py URL MODEL."""

from __future__ import annotations

import asyncio
import json
import sys

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
    async with agent.run_stream("Weather in Ulm?") as result:
        streamed = await result.get_output()
    print(json.dumps({"cities": cities, "texts": [whole.output, streamed]}))


asyncio.run(main(*sys.argv[1:]))

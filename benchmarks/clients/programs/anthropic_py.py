"""Asks a server, as Anthropic's Python SDK does, for each aspect; prints the results as JSON."""

import json
import sys
from typing import Literal

from anthropic import Anthropic, BadRequestError, beta_tool

url, question = sys.argv[1], [{"role": "user", "content": "What is the capital of France?"}]
client = Anthropic(base_url=url, api_key="none")
model = client.models.list().data[0].id
usual = {"model": model, "messages": question, "max_tokens": 256}
city = {"enum": ["Paris", "Rome"]}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
schema["additionalProperties"] = False
seen = {}
seen["text"] = bool(client.messages.create(**usual).content[0].text)
with client.messages.stream(**usual) as stream:
    seen["streams"] = len(list(stream.text_stream)) > 1
tool = {"name": "look_up", "input_schema": schema}
reply = client.messages.create(**usual, tools=[tool], tool_choice={"type": "any"})
seen["tools"] = any("city" in part.input for part in reply.content if part.type == "tool_use")
called = []


@beta_tool
def look_up(city: Literal["Paris", "Rome"]) -> str:
    """Look up a city."""
    called.append(city)
    return city


forced = {"type": "any", "disable_parallel_tool_use": True}
runner = client.beta.messages.tool_runner(
    **usual, tools=[look_up], tool_choice=forced, max_iterations=2
)
seen["tools"] = seen["tools"] and len(list(runner)) == 2 and bool(called)
try:
    client.messages.create(**usual | {"max_tokens": -1})
except BadRequestError as error:
    seen["errors"] = "max_tokens" in str(error)
print(json.dumps(seen))

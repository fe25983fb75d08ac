"""Asks a server, as Haystack does, for each aspect; prints the results as JSON."""

import json
import sys

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from openai import BadRequestError

question = [ChatMessage.from_user("What is the capital of France?")]
usual = {"temperature": 0, "max_tokens": 256}
place = {"api_base_url": f"{sys.argv[1]}/v1", "api_key": Secret.from_token("none")}
city = {"enum": ["Paris", "Rome"]}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
schema["additionalProperties"] = False


def ask(callback=None, tools=None, **extra):
    generator = OpenAIChatGenerator(
        model=sys.argv[2], **place, streaming_callback=callback, tools=tools
    )
    return generator.run(question, generation_kwargs=usual | extra)["replies"][0]


seen, chunks = {}, []
seen["text"] = bool(ask().text)
ask(chunks.append)
seen["streams"] = len(chunks) > 1
tool = Tool(name="look_up", description="A city.", parameters=schema, function=lambda city: city)
[call, *_] = ask(tools=[tool], tool_choice="required").tool_calls
seen["tools"] = "city" in call.arguments
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
seen["forms"] = "city" in json.loads(ask(response_format=form).text)
try:
    ask(temperature=99)
except BadRequestError as error:
    seen["errors"] = "temperature" in str(error)
print(json.dumps(seen))

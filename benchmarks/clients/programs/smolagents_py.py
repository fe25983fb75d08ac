"""Asks a server, as smolagents does, for each aspect; prints the results as JSON."""

import json
import sys

from openai import BadRequestError
from smolagents import OpenAIServerModel, Tool


class LookUp(Tool):
    name = "look_up"
    description = "Look up a city."
    inputs = {"city": {"type": "string", "description": "Its name.", "enum": ["Paris", "Rome"]}}  # noqa: RUF012
    output_type = "string"

    def forward(self, city: str) -> str:
        return city


usual = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none", "max_tokens": 256}
model = OpenAIServerModel(sys.argv[2], temperature=0, **usual)
question = [
    {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}
]
city = {"enum": ["Paris", "Rome"]}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
schema["additionalProperties"] = False
seen = {}
seen["text"] = bool(model(question).content)
seen["streams"] = len(list(model.generate_stream(question))) > 1
[call, *_] = model(question, tools_to_call_from=[LookUp()]).tool_calls
arguments = call.function.arguments
seen["tools"] = "city" in (json.loads(arguments) if isinstance(arguments, str) else arguments)
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
seen["forms"] = "city" in json.loads(model(question, response_format=form).content)
try:
    OpenAIServerModel(sys.argv[2], temperature=99, **usual)(question)
except BadRequestError as error:
    seen["errors"] = "temperature" in str(error)
print(json.dumps(seen))

"""Asks a server, as OpenAI's Python SDK does, for each aspect; prints the results as JSON."""

import json
import sys

from openai import BadRequestError, OpenAI

url, question = sys.argv[1], [{"role": "user", "content": "What is the capital of France?"}]
client = OpenAI(base_url=f"{url}/v1", api_key="none")
model = client.models.list().data[0].id
ask = client.chat.completions.create
usual = {"model": model, "messages": question, "temperature": 0, "max_tokens": 256}
city = {"enum": ["Paris", "Rome"]}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
schema["additionalProperties"] = False
tool = {"type": "function", "function": {"name": "look_up", "parameters": schema}}
seen = {}
seen["text"] = bool(ask(**usual).choices[0].message.content)
seen["streams"] = len([chunk for chunk in ask(**usual, stream=True) if chunk.choices]) > 1
[call] = ask(**usual, tools=[tool], tool_choice="required").choices[0].message.tool_calls
seen["tools"] = "city" in json.loads(call.function.arguments)
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
answer = ask(**usual, response_format=form).choices[0].message.content
seen["forms"] = "city" in json.loads(answer)
try:
    ask(**usual | {"temperature": 99})
except BadRequestError as error:
    seen["errors"] = "temperature" in str(error)
print(json.dumps(seen))

"""Asks a server, as LiteLLM does, for each aspect; prints the results as JSON."""

import json
import sys

from litellm import BadRequestError, completion

question = [{"role": "user", "content": "What is the capital of France?"}]
usual = {"model": "openai/any", "api_base": f"{sys.argv[1]}/v1", "api_key": "none"}
usual |= {"messages": question, "temperature": 0, "max_tokens": 256}
usual["model"] = f"openai/{sys.argv[2]}"
city = {"enum": ["Paris", "Rome"]}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
schema["additionalProperties"] = False
seen = {}
seen["text"] = bool(completion(**usual).choices[0].message.content)
seen["streams"] = len(list(completion(**usual, stream=True))) > 1
tool = {"type": "function", "function": {"name": "look_up", "parameters": schema}}
[call] = completion(**usual, tools=[tool], tool_choice="required").choices[0].message.tool_calls
seen["tools"] = "city" in json.loads(call.function.arguments)
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
seen["forms"] = "city" in completion(**usual, response_format=form).choices[0].message.content
try:
    completion(**usual | {"temperature": 99})
except BadRequestError as error:
    seen["errors"] = "temperature" in str(error)
print(json.dumps(seen))

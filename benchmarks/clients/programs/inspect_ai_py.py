"""Asks a server, as inspect-ai does, for each aspect; prints the results as JSON."""

import asyncio
import json
import sys

from inspect_ai.model import ChatMessageUser, GenerateConfig, ResponseSchema, get_model
from inspect_ai.tool import ToolFunction, ToolInfo, ToolParam, ToolParams
from inspect_ai.util import JSONSchema

CITY = {"type": "string", "enum": ["Paris", "Rome"]}


async def main() -> None:
    question = [ChatMessageUser(content="What is the capital of France?")]
    usual = {"temperature": 0, "max_tokens": 256}
    seen = {}
    place = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none"}
    model = get_model(f"openai-api/diffuspec/{sys.argv[2]}", **place)

    async def ask(**extra):
        config = GenerateConfig(**usual | extra.pop("config", {}))
        return await model.generate(question, config=config, **extra)

    seen["text"] = bool((await ask()).completion)
    parameters = ToolParams(properties={"city": ToolParam(**CITY)}, required=["city"])
    tool = ToolInfo(name="look_up", description="Look up a city.", parameters=parameters)
    answer = await ask(tools=[tool], tool_choice=ToolFunction("look_up"))
    seen["tools"] = "city" in answer.message.tool_calls[0].arguments
    schema = JSONSchema(type="object", properties={"city": JSONSchema(**CITY)}, required=["city"])
    form = ResponseSchema(name="answer", json_schema=schema)
    seen["forms"] = "city" in json.loads((await ask(config={"response_schema": form})).completion)
    try:
        await ask(config={"temperature": 99})
    except Exception as error:
        seen["errors"] = "temperature" in str(error)
    print(json.dumps(seen))


asyncio.run(main())

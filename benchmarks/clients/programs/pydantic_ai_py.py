"""Asks a server, as pydantic-ai does, for each aspect; prints the results as JSON."""

import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]


question, settings = "What is the capital of France?", {"temperature": 0, "max_tokens": 256}
provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = OpenAIChatModel(sys.argv[2], provider=provider)
seen = {}
seen["text"] = bool(Agent(model, model_settings=settings).run_sync(question).output)
for name, kind in (("tools", Answer), ("forms", NativeOutput(Answer))):
    agent = Agent(model, output_type=kind, model_settings=settings)
    seen[name] = isinstance(agent.run_sync(question).output, Answer)
try:
    Agent(model, model_settings={"temperature": 99}).run_sync(question)
except ModelHTTPError as error:
    seen["errors"] = error.status_code == 400
print(json.dumps(seen))

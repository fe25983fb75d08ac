"""Asks a server, as instructor does, for each aspect; prints the results as JSON."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Answer with a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]


usual = {"model": sys.argv[2], "max_tokens": 256, "temperature": 0, "response_model": Answer}
usual["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
seen = {}
for name, mode in (("tools", instructor.Mode.TOOLS), ("forms", instructor.Mode.JSON_SCHEMA)):
    client = instructor.from_openai(OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none"), mode=mode)
    seen[name] = isinstance(client.chat.completions.create(**usual), Answer)
print(json.dumps(seen))

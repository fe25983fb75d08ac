"""Asks a server, as langchain-openai does, for each aspect; prints the results as JSON."""

import json
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from openai import BadRequestError
from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Answer with a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]


question = "What is the capital of France?"
usual = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "max_tokens": 256}
usual["model"] = sys.argv[2]
chat = ChatOpenAI(**usual, temperature=0)
seen = {}
seen["text"] = bool(chat.invoke(question).content)
seen["streams"] = len(list(chat.stream(question))) > 1
[call] = chat.bind_tools([Answer], tool_choice="required").invoke(question).tool_calls
seen["tools"] = "city" in call["args"]
form = chat.with_structured_output(Answer, method="json_schema")
seen["forms"] = isinstance(form.invoke(question), Answer)
try:
    ChatOpenAI(**usual, temperature=99).invoke(question)
except BadRequestError as error:
    seen["errors"] = "temperature" in str(error)
print(json.dumps(seen))

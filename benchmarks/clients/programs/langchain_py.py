import json
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from openai import BadRequestError
from pydantic import BaseModel


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]


def look_up(city: Literal["Paris", "Rome"]) -> str:
    """Look up a city."""
    return city


question = "What is the capital of France?"
usual = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "model": sys.argv[2], "max_tokens": 64}
chat = ChatOpenAI(**usual, temperature=0)
seen = {}
seen["text"] = bool(chat.invoke(question).content)
seen["streams"] = len(list(chat.stream(question))) > 1
[call] = chat.bind_tools([look_up], tool_choice="required").invoke(question).tool_calls
seen["tools"] = "city" in call["args"]
form = chat.with_structured_output(Answer, method="json_schema")
seen["forms"] = isinstance(form.invoke(question), Answer)
try:
    ChatOpenAI(**usual, temperature=99).invoke(question)
except BadRequestError as error:
    seen["errors"] = "temperature" in str(error)
print(json.dumps(seen))

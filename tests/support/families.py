"""What a service makes of the tokenizer of a family, and functions to call."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from numpy.typing import NDArray

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions, read_conventions
from diffuspec.serve.openai.jobs import Job, encode
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.reading.pieces import Call, Thought, calls_in
from diffuspec.serve.openai.reading.readers import make_reader
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.grammars import grammars_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
        "exact": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Ulm", "Köln"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [STRICT, CLOCK]
REQUIRED: dict[str, Any] = {"tool_choice": "required"}
ONE: dict[str, Any] = {"parallel_tool_calls": False}

WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3_json": '{"name": "weather", "parameters": {"city": "Ulm"}}',
    "pythonic": '[weather(city="Ulm")]',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}}]',
    "mistral with [ARGS]": '[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}',
    "openai": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Ulm"}',
}


class Family:
    """A tokenizer of a family, its grammars, and what a service does with them."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        """`folder`: where the tokenizer is saved."""
        self.tokenizer = tokenizer
        self.backend = self.tokenizer.backend_tokenizer
        self.ids: dict[str, int] = self.tokenizer.get_vocab()
        ids = (self.tokenizer.eos_token_id, self.ids.get("<|call|>"))
        self.ends = tuple(one for one in ids if one is not None)
        special = [i for i, t in self.backend.get_added_tokens_decoder().items() if t.special]
        self._is_end = self._among(self.ends)
        self._is_closing = [self._among(special), self._among([self.ids[x] for x in '")}]'])]
        self.grammars = grammars_of(folder, TargetInfo(len(self.ids), 2048, 2, self.ends))
        self.conventions: Conventions = read_conventions(folder, self.tokenizer, ServeSettings())
        self.model = ServedModel("m", 0, 2048, len(self.ids), conventions=self.conventions)

    def job(self, *tools: Any, **keys: Any) -> Job:
        body = {"messages": [{"role": "user", "content": "x"}], **keys}
        return parse(
            "/v1/chat/completions", body | ({"tools": [*tools]} if tools else {}), self.model
        )

    def form(self, *tools: Any, **keys: Any) -> StructuredOutput:
        [generation] = encode(self.job(*tools, **keys), self.tokenizer, self.model)
        assert generation.sampling.structured_output is not None
        return generation.sampling.structured_output

    def draw(self, form: StructuredOutput, seed: int, most: int = 4000) -> str:
        """Return a random answer of a form: short, for it ends where it may."""
        rng, ids = random.Random(seed), []
        matcher = self.grammars.compile(form)
        for _ in range(most):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(mask, bitorder="little").nonzero()[0]
            assert allowed.size, matcher.get_error()
            if matcher.is_accepting() and rng.random() < 0.5:
                break
            inside = allowed[~self._is_end[allowed]]
            going_on = inside if inside.size else allowed
            for is_closing in self._is_closing:
                if (ends := going_on[is_closing[going_on]]).size and rng.random() < 0.5:
                    going_on = ends
            token_id = int(rng.choice(going_on))
            if token_id in self.ends:
                break
            assert matcher.consume_token(token_id)
            ids.append(token_id)
        return str(self.backend.decode(ids, skip_special_tokens=False))

    def _among(self, ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return, for each id of the vocabulary, whether it is one of some."""
        found = np.zeros(1 + max(self.ids.values()), np.bool_)
        found[[*ids]] = True
        return found

    def takes(self, form: StructuredOutput, text: str) -> bool:
        """Whether an answer of this form may be this text, with the tokens that a model learns."""
        ids = self.backend.encode(text, add_special_tokens=False).ids
        matcher = self.grammars.compile(form)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def read(self, text: str, tools: Sequence[Any] = TOOLS) -> tuple[list[Call], str, str]:
        """Return the calls, the content and the reasoning of an answer."""
        reader = make_reader(self.conventions, tools, "open")
        pieces = [*reader.read(text), *reader.finish()]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
        return calls_in(pieces), content, thoughts


def check(calls: Sequence[Call]) -> None:
    """Check that calls fit the schemas of the functions."""
    for call in calls:
        arguments = json.loads(call.arguments)
        if call.name == "weather":
            Draft202012Validator(SCHEMA).validate(arguments)
        else:
            assert (call.name, arguments) == ("clock", {})

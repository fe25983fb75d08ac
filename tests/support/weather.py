"""A function that tests have a model call, a call in Qwen's marks, and a form of answers."""

from __future__ import annotations

from typing import Any

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
SAID = f"<think>\nHm, so.\n</think>\n\nI look.\n{CALL}\n{CALL}"

# An object that the tiny pair writes within a few tokens.
PARIS_OR_ROME: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}

"""The error for a JSON Schema that cannot be enforced: the reason, and the place in it."""

from __future__ import annotations


class RefusedSchemaError(ValueError):
    """A schema that cannot be enforced: `place` is a path such as #/items/const."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place} {problem}")
        self.place = place
        self.problem = problem

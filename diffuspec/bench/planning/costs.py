"""Files of costs: seconds of the roles' calls on a device, each with its origin."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from diffuspec.bench.planning.machines import CallSize, Machine
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import Section, explain

Origin: TypeAlias = Literal["measured here", "measured elsewhere", "fitted", "estimated"]

_MOST_BYTES = 2**24
SHIPPED = Path(__file__).with_name("shipped")


class Figure(Section):
    """A number, and where it comes from."""

    value: float = Field(ge=0, allow_inf_nan=False)
    origin: Origin


class Curve(Section):
    """Seconds by size: straight lines between points, the last of which goes on."""

    points: tuple[tuple[float, float], ...] = Field(min_length=2)  # (size, seconds)
    origin: Origin

    @model_validator(mode="after")
    def _rises(self) -> Self:
        sizes = [size for size, _ in self.points]
        if sizes != sorted(set(sizes)) or min(seconds for _, seconds in self.points) <= 0:
            raise ValueError("points must have rising sizes and seconds above 0")
        return self

    def at(self, size: float) -> float:
        """Seconds of a size."""
        points = self.points
        place = min(bisect_right(points, (size, math.inf)), len(points) - 1)
        (low, first), (high, second) = points[max(place - 1, 0)], points[max(place, 1)]
        slope = (second - first) / (high - low)
        if size > high:
            slope = max(slope, 0.0)
        return first + slope * (max(size, low) - low)


class CallCosts(Section):
    """Seconds of one kind of call of a model: verifications, or drafts."""

    rows: Curve = Field(description="One request, by its rows or positions.")
    request: Figure = Field(description="Each further request.")
    context: Figure = Field(description="Each cached token of a request.")
    row_context: Figure = Field(description="Each cached token, for each row that sees it.")
    reading: Figure | None = Field(None, description="Each prefix token read; null: it is a row.")
    refresh_every: int | None = Field(
        None, ge=1, description="Committed tokens after which a prefix is read again; null: never."
    )
    refresh_tokens: int | None = Field(
        None, ge=1, description="Most tokens at its end that are then read; null: all."
    )

    def seconds(self, size: CallSize) -> float:
        """Seconds of a call alone."""
        num_rows = size.num_rows + (size.num_unread if self.reading is None else 0)
        seconds = self.rows.at(num_rows) + self.request.value * (size.num_requests - 1)
        seconds += self.context.value * size.num_context
        seconds += self.row_context.value * size.num_context * num_rows / size.num_requests
        if self.reading is not None:
            seen = self.row_context.value * size.num_unread / 2  # a token sees those before it
            seconds += (self.reading.value + seen / size.num_requests) * size.num_unread
        return seconds

    @property
    def origins(self) -> Iterator[Origin]:
        yield from (self.rows.origin, self.request.origin, self.context.origin)
        yield self.row_context.origin
        if self.reading is not None:
            yield self.reading.origin


class ModelCosts(Section):
    """A model on a device: as a target, as a drafter, or both."""

    source: str = Field(description="Command, machine, revision and date of the measurements.")
    verify: CallCosts | None = None
    draft: CallCosts | None = None
    weight_bytes: Figure = Field(description="Bytes of the weights.")
    cache_bytes: Figure = Field(description="Bytes of a token in the key-value cache.")


class DeviceCosts(Section):
    """A device, and the costs of models on it. One file holds one device."""

    device: str
    memory_bytes: Figure
    interference: Figure = Field(
        description="Seconds that a second of drafting adds to a verification beside it, and "
        "the other way round, on one device."
    )
    models: dict[str, ModelCosts] = Field({}, description="By name.")

    def find(self, name: str) -> ModelCosts | None:
        """Return the costs of a model by its name, in any spelling of capitals."""
        same = (costs for key, costs in self.models.items() if key.lower() == name.lower())
        return next(same, None)


def read_costs(path: Path) -> DeviceCosts:
    """Read a file of costs. Raises ConfigError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: a file of costs has at most {_MOST_BYTES} bytes")
        return DeviceCosts.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read costs from {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, DeviceCosts)}") from error


def write_costs(path: Path, costs: DeviceCosts) -> None:
    """Write a file of costs."""
    path.write_text(costs.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def add_costs(path: Path, costs: DeviceCosts) -> None:
    """Write costs into a file, which keeps its other models of the device. Raises ConfigError."""
    known = read_costs(path) if path.exists() else costs
    kept = known.models if known.device == costs.device else {}
    write_costs(path, costs.model_copy(update={"models": {**kept, **costs.models}}))


def shipped_devices() -> list[str]:
    """Return the names of the devices whose costs come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


class CostedMachine(Machine):
    """A machine with the costs of files."""

    name = "costed"

    def __init__(
        self,
        target: CallCosts,
        drafter: CallCosts | None,
        interference: float = 0.0,
        network_seconds: float = 0.0,
        num_drafters: int = 1,
        overlap: bool = False,
    ) -> None:
        """interference: 0 for a drafter on a device of its own. overlap: it drafts ahead."""
        self._target = target
        self._drafter = drafter
        self.interference = interference
        self.network_seconds = network_seconds
        self.num_drafters = num_drafters if drafter else 0
        self.overlap = overlap
        self.refresh_every = drafter.refresh_every if drafter else None
        self.refresh_tokens = drafter.refresh_tokens if drafter else None

    def verify_seconds(self, size: CallSize) -> float:
        return self._target.seconds(size)

    def draft_seconds(self, size: CallSize) -> float:
        assert self._drafter is not None, "it has no drafter"
        return self._drafter.seconds(size)

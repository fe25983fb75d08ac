"""The number of draft servers in a pool, by the waiting drafts and the time spent drafting.

Pure functions of the loads. The number changes only when the loads have called for it for a while,
because a server takes long to start, and the engines of one that ends have to connect again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from actors.draft_load import DraftLoad
from diffuspec.core.validation import Section


class DraftScaling(Section):
    """The number of draft servers in a pool."""

    min_servers: int = Field(1, ge=1, le=256, description="Minimum number of draft servers.")
    max_servers: int = Field(1, ge=1, le=256, description="Maximum number of draft servers.")
    target_drafting_share: float = Field(
        0.7, gt=0, le=1, description="Fraction of its time that each server should spend drafting."
    )
    target_queued: float = Field(
        4.0, gt=0, description="Maximum mean number of drafts that should wait at each server."
    )
    up_seconds: float = Field(
        10, ge=0, description="Seconds for which more servers must be needed before one is added."
    )
    down_seconds: float = Field(
        300,
        ge=0,
        description="Seconds for which fewer servers must be needed before one is removed.",
    )

    @model_validator(mode="after")
    def _min_below_max(self) -> Self:
        if self.min_servers > self.max_servers:
            raise ValueError(
                f"min_servers must be at most max_servers, {self.max_servers}, got "
                f"{self.min_servers}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Demand:
    """The number of servers wanted at one point in time."""

    at: float
    num_servers: int


def desired_servers(loads: Sequence[DraftLoad], scaling: DraftScaling) -> int:
    """Return the number of servers that would bring these loads to the targets, within the bounds.

    Never more than the number of engines: an engine uses one server, and a server may be busy with
    pre-drafts alone.
    """
    by_time = sum([one.drafting_share for one in loads]) / scaling.target_drafting_share
    by_queue = sum([one.num_queued for one in loads]) / scaling.target_queued
    num_engines = sum([one.num_engines for one in loads])
    wanted = min(math.ceil(round(max(by_time, by_queue), 6)), num_engines)
    return min(max(wanted, scaling.min_servers), scaling.max_servers)


def decide(num_servers: int, demands: Sequence[Demand], now: float, scaling: DraftScaling) -> int:
    """Return the number of servers to run, given the demands so far, oldest first.

    It grows if more servers were wanted throughout the last up_seconds, and shrinks if fewer were
    wanted throughout down_seconds. A record shorter than that changes nothing.
    """
    most = max(_last(demands, now, scaling.down_seconds), default=num_servers)
    fewest = min(_last(demands, now, scaling.up_seconds), default=num_servers)
    if fewest > num_servers:
        num_servers = fewest
    elif most < num_servers:
        num_servers = most
    return min(max(num_servers, scaling.min_servers), scaling.max_servers)


def _last(demands: Sequence[Demand], now: float, seconds: float) -> list[int]:
    """Return the numbers wanted in the last seconds; an empty list if the record is shorter."""
    if not demands or now - demands[0].at < seconds:
        return []
    return [one.num_servers for one in demands if now - one.at <= seconds]

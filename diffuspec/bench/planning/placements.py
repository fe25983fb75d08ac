"""The placements of a plan: what runs on which device, at which costs, and how it is deployed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diffuspec.bench.planning.costs import (
    SHIPPED,
    CallCosts,
    CostedMachine,
    DeviceCosts,
    ModelCosts,
    read_costs,
    shipped_devices,
)
from diffuspec.bench.planning.estimates import (
    CARDS,
    KNOWN,
    empty_device,
    estimate,
    find_card,
    find_sizes,
)
from diffuspec.bench.planning.plan import APART, OFF, SERVED, SHARED, Placement
from diffuspec.bench.planning.roles import MAX_SEQUENCES
from diffuspec.core.errors import ConfigError

_PAGE_TOKENS = 64  # of the key-value cache
_MEMORY_SHARE = 0.9  # of a device, for weights and caches


@dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a plan."""

    device: str
    costs: Path | None = None  # a file of costs, in place of the shipped one
    num_target_gpus: int = 1
    num_drafter_gpus: int = 1
    num_engines: int = 0  # engines of another make, for draft servers; 0: none is planned
    network_seconds: float = 1e-4  # one way between target and drafter

    def read(self) -> DeviceCosts:
        """Return the known costs of the device. Raises ConfigError."""
        if self.costs is not None:
            return read_costs(self.costs)
        if self.device.lower() in shipped_devices():
            return read_costs(SHIPPED / f"{self.device.lower()}.json")
        return empty_device(self.device)


@dataclass(frozen=True, slots=True)
class Models:
    """A target and a drafter with their costs."""

    target: str
    drafter: str | None
    target_costs: ModelCosts
    drafter_costs: ModelCosts | None

    @property
    def origins(self) -> list[str]:
        """A line for each model: where its costs come from."""
        named = [(self.target, self.target_costs, self.target_costs.verify)]
        if self.drafter is not None and self.drafter_costs is not None:
            named.append((self.drafter, self.drafter_costs, self.drafter_costs.draft))
        return [
            f"Costs of {name}: {', '.join(dict.fromkeys(call.origins))}. {costs.source}"
            for name, costs, call in named
            if call is not None
        ]


def find_models(
    device: DeviceCosts, hardware: Hardware, target: str, drafter: str | None
) -> Models:
    """Return the costs of both models: known, or estimated. Raises ConfigError."""
    target_costs = _find(device, hardware, target, hardware.num_target_gpus)
    if target_costs.verify is None:
        raise ConfigError(f"{device.device}: there are costs of {target} as a drafter only")
    if drafter is None:
        return Models(target, None, target_costs, None)
    drafter_costs = _find(device, hardware, drafter, 1)
    if drafter_costs.draft is None:
        raise ConfigError(f"{device.device}: there are costs of {drafter} as a target only")
    return Models(target, drafter, target_costs, drafter_costs)


def _find(device: DeviceCosts, hardware: Hardware, name: str, num_ranks: int) -> ModelCosts:
    short = Path(name).name.removesuffix("-Instruct")
    known = device.find(short) or device.find(name)
    if known is not None and num_ranks == 1:
        return known
    sizes = find_sizes(name)
    if sizes is None or hardware.device.lower() not in CARDS:
        names = ", ".join(sorted({*device.models, *(KNOWN if sizes is None else ())}))
        raise ConfigError(
            f"nothing is known of {name} on {num_ranks} x {device.device}: give a file of costs "
            f"(--costs), a directory with a config.json, or one of {names}"
        )
    return estimate(sizes, find_card(hardware.device), num_ranks)


def make_placements(
    device: DeviceCosts, hardware: Hardware, models: Models, tokens: float, max_sequences: int
) -> list[Placement]:
    """Return the placements that fit; `tokens`: of a request at its end. Raises ConfigError."""
    target, drafter = models.target_costs, models.drafter_costs
    assert target.verify is not None, "checked when it was found"
    memory = _MEMORY_SHARE * device.memory_bytes.value
    slots = _slots(memory, tokens, target)
    if slots < 1:
        raise ConfigError(
            f"{models.target} with a request of {tokens:.0f} tokens needs more than "
            f"{hardware.num_target_gpus} x {device.device}: give --target-gpus"
        )
    size = min(slots, max_sequences, MAX_SEQUENCES)
    off = Placement(OFF, CostedMachine(target.verify, None), hardware.num_target_gpus, size, False)
    if drafter is None or drafter.draft is None:
        return [off]
    placements, calls = [off], (target.verify, drafter.draft)
    slots = _slots(memory, tokens, target, drafter)
    if slots >= 1 and hardware.num_target_gpus == 1:  # ranks take whole GPUs
        machine = CostedMachine(*calls, device.interference.value)
        size = min(slots, max_sequences, MAX_SEQUENCES)
        placements.append(Placement(SHARED, machine, hardware.num_target_gpus, size))
    placements.append(_apart(calls, hardware, off.max_sequences))
    if hardware.num_engines:
        placements.append(_served(calls, hardware, off.max_sequences))
    return placements


def _apart(calls: tuple[CallCosts, CallCosts], hardware: Hardware, max_sequences: int) -> Placement:
    count = hardware.num_drafter_gpus
    machine = CostedMachine(*calls, 0.0, hardware.network_seconds, count, overlap=True)
    return Placement(APART, machine, hardware.num_target_gpus + count, max_sequences)


def _served(
    calls: tuple[CallCosts, CallCosts], hardware: Hardware, max_sequences: int
) -> Placement:
    """Return an engine of another make that shares a draft server; each server has one drafter."""
    engines, servers = hardware.num_engines, hardware.num_drafter_gpus
    machine = CostedMachine(*calls, 0.0, hardware.network_seconds, overlap=True)
    num_gpus = hardware.num_target_gpus + servers / engines
    most = math.ceil(engines / servers)  # engines of one server
    return Placement(SERVED, machine, num_gpus, max_sequences, num_engines=most)


def _slots(memory: float, tokens: float, *models: ModelCosts) -> int:
    """Return the number of requests whose pages fit beside the weights."""
    held = _PAGE_TOKENS * math.ceil(tokens / _PAGE_TOKENS)
    room = memory - sum(model.weight_bytes.value for model in models)
    return int(room / (held * sum(model.cache_bytes.value for model in models)))


def deployment(
    placement: Placement, hardware: Hardware, models: Models, pair: str | None
) -> dict[str, Any]:
    """Return the configuration that deploys a placement: an engine's, or a pipeline's if apart."""
    on_gpu = {} if hardware.device == "cpu" else {"device": "cuda", "dtype": "bfloat16"}
    engine: dict[str, Any] = {"preset": pair} if pair else {"target": {"path": models.target}}
    engine["target"] = (
        engine.get("target", {}) | on_gpu | {"max_sequences": placement.max_sequences}
    )
    if not placement.has_drafts:
        engine |= {"drafter": None} if pair else {}
        engine["speculation"] = {"policy": "off"}
    elif models.drafter is not None:
        engine["drafter"] = ({} if pair else {"path": models.drafter}) | on_gpu
    if placement.name != APART and hardware.num_target_gpus == 1:
        return engine
    engine["coordinator"] = {"overlap": placement.name == APART}
    num_gpus = 0 if hardware.device == "cpu" else 1
    roles: dict[str, Any] = {"verifier": {"num_gpus": num_gpus}}
    if hardware.num_target_gpus > 1:
        roles["verifier"]["tensor_parallel"] = hardware.num_target_gpus
    if placement.has_drafts:
        roles["drafter"] = {"count": hardware.num_drafter_gpus, "num_gpus": num_gpus}
    return {"engine": engine, "placement": roles}


def as_yaml(data: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=False)
    return text

"""Configuration of a pipeline: its models, where each role runs, and what bounds the calls.

Read from one YAML file, with the engine's own sections under `engine`. Unknown keys are errors.
Everything has a default but the models, so that `engine: {preset: tiny}` is a whole file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from diffuspec.core.config import EngineConfig, Section, explain, read_yaml
from diffuspec.core.errors import ConfigError
from diffuspec.pairs.tiny import tiny_config
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security, TlsFiles

MAX_MISSES = 3  # checks in a row without an answer before a role is taken for dead
SHARE_DIGITS = 4  # Ray's own resolution of a resource

_MIN_SHARE = 10**-SHARE_DIGITS
_MAX_GPUS = 16
_MAX_OTHER_CALLS = 32  # to the coordinator: status, health, cancel


def round_share(amount: float) -> float:
    """Return what Ray makes of an amount of a resource."""
    return round(amount, SHARE_DIGITS)


Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(ge=_MIN_SHARE, le=1_000_000), AfterValidator(round_share)]

# Kubernetes' syntax, which is Ray's; a value may be a selector, as in !in(a,b).
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"([A-Za-z0-9.-]{{0,252}}[A-Za-z0-9]/)?{_LABEL}")
_LABEL_VALUE = re.compile(rf"(!?{_LABEL}|!?(in)?\({_LABEL}(,{_LABEL})*\))?")


def _check_gpus(name: str, num_gpus: float) -> None:
    if num_gpus != round_share(num_gpus):
        raise ValueError(f"{name} must be a multiple of {_MIN_SHARE}, got {num_gpus:g}")
    if num_gpus > 1 and not float(num_gpus).is_integer():
        raise ValueError(f"{name} must be a share of one GPU or whole GPUs, got {num_gpus:g}")


class RoleSettings(Section):
    """What one actor of a role gets of its node."""

    num_cpus: Share = 1.0
    num_gpus: float = Field(0.0, ge=0, le=_MAX_GPUS)  # below 1: a share of one
    num_threads: int = Field(1, ge=1, le=256)  # for mathematics on the CPU

    @model_validator(mode="after")
    def _whole_gpus_or_a_share(self) -> Self:
        _check_gpus("num_gpus", self.num_gpus)
        return self


class NodeSettings(Section):
    """Which nodes will do: those with these labels and so much of these custom resources free."""

    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Share] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _custom_resources_only(self) -> Self:
        if "" in self.resources:
            raise ValueError("resources has one without a name")
        own = {"CPU", "GPU", "memory", "object_store_memory"} & set(self.resources)
        if own:
            raise ValueError(
                f"resources names {sorted(own)}; custom resources go here, the others are "
                "num_cpus and num_gpus"
            )
        return self

    @model_validator(mode="after")
    def _labels_that_ray_can_read(self) -> Self:
        spaced = {key: value for key, value in self.labels.items() if " " in value}
        if spaced:
            raise ValueError(
                f"labels {spaced} have spaces, which Ray takes for a part of the label: "
                "write !in(a,b)"
            )
        for key, value in self.labels.items():
            if not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
                raise ValueError(
                    f"labels has {key!r}: {value!r}; key and value are up to 63 letters, digits, "
                    "'-', '_' and '.', with a letter or a digit at both ends"
                )
        return self


class CoordinatorSettings(RoleSettings):
    """The one coordinator of a pipeline."""

    node: NodeSettings = NodeSettings()


class DrafterSettings(RoleSettings):
    """Each drafter; its path scorer runs beside it, on the same GPU if it has a share of one."""

    count: int = Field(1, ge=1, le=64)
    node: NodeSettings = NodeSettings()


class VerifierSettings(RoleSettings):
    """Each rank of the verifier. All ranks run on one node."""

    tensor_parallel: int = Field(1, ge=1, le=_MAX_GPUS)
    node: NodeSettings = NodeSettings()

    @model_validator(mode="after")
    def _a_gpu_per_rank(self) -> Self:
        if self.tensor_parallel > 1 and self.num_gpus not in (0, 1):
            raise ValueError(
                f"num_gpus is per rank: with tensor_parallel {self.tensor_parallel} it must be 1, "
                f"or 0 on CPUs, got {self.num_gpus}"
            )
        return self


class PlacementSettings(Section):
    """Bundles of one placement group: the coordinator, each drafter with its scorer, the verifier.

    STRICT_SPREAD puts every bundle on a node of its own, STRICT_PACK all on one; PACK and SPREAD
    do so as far as there is room.
    """

    strategy: Strategy = "PACK"
    coordinator: CoordinatorSettings = CoordinatorSettings()
    drafter: DrafterSettings = DrafterSettings()
    path_scorer: RoleSettings = RoleSettings()
    verifier: VerifierSettings = VerifierSettings()

    @model_validator(mode="after")
    def _drafter_and_scorer_share(self) -> Self:
        _check_gpus("drafter.num_gpus and path_scorer.num_gpus together", self.shared_gpus)
        return self

    @property
    def shared_gpus(self) -> float:
        """GPUs of a drafter's bundle."""
        return round_share(self.drafter.num_gpus + self.path_scorer.num_gpus)


class TlsSettings(Section):
    """PEM files, at the same place on every node. server_name: the name in the certificates."""

    ca: Path
    certificate: Path
    key: Path
    server_name: str | None = None


class DeadlineSettings(Section):
    """How long each thing may take."""

    placement_seconds: Seconds = 120  # until the cluster has room
    start_seconds: Seconds = 900  # of one role: process, weights, first step
    draft_seconds: Seconds = 10  # then decoding goes on without drafts
    search_seconds: Seconds = 5
    verify_seconds: Seconds = 60  # then the verifier is taken for dead and made anew
    health_seconds: Seconds = 2  # between checks, and for the answer to one
    answer_seconds: Seconds = 3600  # a whole answer, the time in the queue included
    drain_seconds: Seconds = 30  # for running requests when the pipeline stops

    @property
    def silence_seconds(self) -> float:
        """How long it may take until a role that does not answer is taken for dead."""
        return 2 * MAX_MISSES * self.health_seconds


class RpcSettings(Section):
    """How the roles speak to each other. Without TLS they must all be on one machine."""

    tls: TlsSettings | None = None
    max_message_bytes: int = Field(DEFAULT_LIMITS.max_message_bytes, ge=65_536, le=2**30)


class PipelineConfig(Section):
    """Everything a deployment needs."""

    engine: EngineConfig
    placement: PlacementSettings = PlacementSettings()
    rpc: RpcSettings = RpcSettings()
    deadlines: DeadlineSettings = DeadlineSettings()
    # A file for Perfetto, written where the coordinator runs. One that replaces a lost one writes
    # beside it: t.json, then t.2.json and so on.
    trace: Path | None = None

    @model_validator(mode="after")
    def _gpus_where_models_want_them(self) -> Self:
        placement, engine = self.placement, self.engine
        wanted = [("verifier", placement.verifier.num_gpus, engine.target.device, "target")]
        if engine.drafter is not None:
            wanted += [("drafter", placement.drafter.num_gpus, engine.drafter.device, "drafter")]
        for role, num_gpus, device, section in wanted:
            if num_gpus == 0 and device == "cuda":
                raise ValueError(
                    f"engine.{section}.device is cuda, but placement.{role}.num_gpus is 0"
                )
        return self

    @property
    def num_drafters(self) -> int:
        """0 for plain decoding: there is no drafter in the engine's configuration."""
        return 0 if self.engine.drafter is None else self.placement.drafter.count

    def limits(self, max_step_seconds: float) -> RpcLimits:
        """Return the bounds of the wire, for a role whose steps may take so long."""
        return RpcLimits(
            max_message_bytes=self.rpc.max_message_bytes, max_step_seconds=max_step_seconds
        )

    def coordinator_limits(self) -> RpcLimits:
        """Return the bounds of the wire to the coordinator: a call for every request it admits."""
        num_requests = self.engine.target.max_sequences + self.engine.coordinator.max_waiting
        return RpcLimits(
            max_message_bytes=self.rpc.max_message_bytes,
            max_step_seconds=self.deadlines.answer_seconds,
            max_concurrent_rpcs=num_requests + _MAX_OTHER_CALLS,
        )

    def security(self, token: str) -> Security:
        tls = self.rpc.tls
        return Security(token, TlsFiles(**tls.model_dump()) if tls is not None else None)


def load_pipeline(path: Path) -> PipelineConfig:
    """Read a YAML file. Raises ConfigError naming the key, the value and what would be right."""
    return parse_pipeline(read_yaml(path))


def parse_pipeline(data: dict[str, Any]) -> PipelineConfig:
    """Validate plain data. `engine.preset: tiny` fills in what is not given. Raises ConfigError."""
    engine = data.get("engine")
    if isinstance(engine, dict) and "preset" in engine:
        data = {**data, "engine": _fill_in(engine)}
    try:
        return PipelineConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error)) from error


def _fill_in(engine: dict[str, Any]) -> dict[str, Any]:
    """Lay what is given over the preset, section by section."""
    given = dict(engine)
    preset = given.pop("preset")
    if preset != "tiny":
        raise ConfigError(f"engine.preset must be `tiny`, got {preset!r:.80}")
    filled: dict[str, Any] = tiny_config().model_dump()
    for name, section in given.items():
        below = filled.get(name)
        if isinstance(below, dict) and isinstance(section, dict):
            section = {**below, **section}
        filled[name] = section
    return filled

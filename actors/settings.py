"""Configuration of a pipeline: its models, where each role runs, and the limits on calls.

Read from one YAML file, with the engine's own sections under `engine`. Unknown keys are errors.
Everything but the models has a default, so `engine: {preset: tiny}` is a complete file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from actors.placement_settings import DrafterSettings, PlacementSettings
from diffuspec.core.addresses import MAX_PORT
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.core.validation import FilePath, Section, read_yaml, validate
from diffuspec.drafters import Home, kind_of
from diffuspec.pairs import fill_in_preset
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security, TlsFiles

MAX_MISSES = 3  # failed checks in a row after which a role counts as dead

# concurrent calls to the coordinator other than requests: status, health, cancel
_MAX_OTHER_CALLS = 32

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class TlsSettings(Section):
    """PEM files, at the same path on every node."""

    ca: FilePath = Field(
        description="Certificate of the authority that signed the other certificates."
    )
    certificate: FilePath = Field(description="Certificate of this node.")
    key: FilePath = Field(description="Private key of this node's certificate.")
    server_name: str | None = Field(
        None, description="Name in the certificates, if it is not the nodes' addresses."
    )


class DeadlineSettings(Section):
    """Limits on the time that work may take, in seconds."""

    placement_seconds: Seconds = Field(
        120, description="Seconds to wait until the cluster has room."
    )
    start_seconds: Seconds = Field(
        900, description="Seconds for one role to start: its process, weights and first step."
    )
    draft_seconds: Seconds = Field(
        10, description="Seconds for a draft; afterwards decoding continues without it."
    )
    search_seconds: Seconds = Field(5, description="Seconds for a path search over lattices.")
    verify_seconds: Seconds = Field(
        60, description="Seconds for a verification; afterwards the verifier is restarted."
    )
    health_seconds: Seconds = Field(
        2, description="Seconds between two health checks of a role, and timeout of each check."
    )
    answer_seconds: Seconds = Field(
        3600, description="Seconds for a whole answer, including its time in the queue."
    )
    drain_seconds: Seconds = Field(
        30, description="Seconds that running requests have to finish when the pipeline stops."
    )

    @property
    def silence_seconds(self) -> float:
        """Most seconds until a role that stopped answering counts as dead."""
        return 2 * MAX_MISSES * self.health_seconds


class RpcSettings(Section):
    """How the roles communicate."""

    tls: TlsSettings | None = Field(
        None, description="TLS certificates; null: no TLS, and all roles must be on one machine."
    )
    host: str | None = Field(
        None,
        description="Address at which the coordinator listens; null: with TLS the address of its "
        "node, without TLS 127.0.0.1.",
    )
    port: int = Field(
        0,
        ge=0,
        le=MAX_PORT,
        description="Port of the coordinator; 0: any free port. A second pipeline on the same node "
        "needs a different port.",
    )
    token_file: FilePath | None = Field(
        None,
        description="File, on the node that starts the pipeline, with the token that every call "
        "must carry; null: the environment variable DIFFUSPEC_TOKEN, or a new token if "
        "it is not set.",
    )
    max_message_bytes: int = Field(
        DEFAULT_LIMITS.max_message_bytes,
        ge=65_536,
        le=2**30,
        description="Maximum size of a message between roles, in bytes.",
    )

    @model_validator(mode="after")
    def _an_address_to_dial(self) -> Self:
        if self.host in ("", "0.0.0.0", "::"):
            raise ValueError(
                f"host must be an address that the other roles can reach, got {self.host!r}"
            )
        return self


@dataclass(frozen=True, slots=True)
class DrafterProcess:
    """A drafter's process in a bundle of its own, with a path scorer if it needs one.

    Processes are told apart by name if there are several drafters, otherwise by number.
    """

    index: int  # index of its bundle among the drafters' bundles
    drafter: str  # the name by which requests choose it
    number: str  # "0", or "sps 0" with several drafters
    settings: DrafterSettings
    needs_path_scorer: bool

    @property
    def role(self) -> str:
        return f"drafter {self.number}"

    @property
    def scorer_role(self) -> str:
        return f"path scorer {self.number}"


class PipelineConfig(Section):
    """The whole configuration of a deployment."""

    engine: EngineConfig = Field(
        description="The models and how they work together; `preset: tiny` fills in the embedded "
        "pair, `preset: smollm2` the one of `make smollm2`."
    )
    placement: PlacementSettings = Field(
        PlacementSettings(), description="Where each role runs, and what it reserves there."
    )
    rpc: RpcSettings = Field(RpcSettings(), description="The connections between the roles.")
    deadlines: DeadlineSettings = Field(
        DeadlineSettings(), description="Timeouts and other durations."
    )
    audit_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of answers that the coordinator decodes again without drafts and "
        "compares (`diffuspec_audits_total`), one at a time, while it has a free slot.",
    )
    trace: FilePath | None = Field(
        None,
        description="File on the coordinator's node for a trace of all steps (ui.perfetto.dev). If "
        "the coordinator is replaced, the new one writes t.2.json next to t.json, and "
        "so on.",
    )

    @model_validator(mode="after")
    def _gpus_where_models_want_them(self) -> Self:
        placement, engine = self.placement, self.engine
        host = ("verifier", placement.verifier.num_gpus)
        if placement.together:
            host = ("coordinator", placement.coordinator.num_gpus)
        wanted = [(*host, engine.target.device, "target")]
        drafter: Any
        for name, drafter in engine.named_drafters.items():
            kind, section = kind_of(drafter), engine.section_of(name)
            if kind.has_model and (kind.home == "verifier" or placement.together):
                wanted.append((*host, drafter.device, section))
            elif kind.has_model:
                role = f"drafters.{name}" if name in placement.drafters else "drafter"
                wanted.append((role, placement.of_drafter(name).num_gpus, drafter.device, section))
        for role, num_gpus, device, section in wanted:
            if num_gpus == 0 and device == "cuda":
                raise ValueError(
                    f"engine.{section}.device is cuda, but placement.{role}.num_gpus is 0"
                )
        return self

    @model_validator(mode="after")
    def _no_place_without_a_process(self) -> Self:
        names, placement = self.drafters_in("process"), self.placement
        for name in placement.drafters:
            if name not in names:
                known = ", ".join(names) or "none"
                raise ValueError(
                    f"placement.drafters.{name}: the drafters with processes of their own are "
                    f"{known}"
                )
        num_gpus = placement.drafter.num_gpus
        if num_gpus and self.engine.drafter is not None and not names:
            kinds = ", ".join(one.kind for one in self.engine.named_drafters.values())
            raise ValueError(
                f"drafters of the kind {kinds} have no process of their own: "
                f"placement.drafter.num_gpus must be 0, got {num_gpus:g}"
            )
        return self

    @property
    def drafter_processes(self) -> tuple[DrafterProcess, ...]:
        """The drafter processes, grouped by the drafter's name."""
        names = self.engine.named_drafters
        found: list[DrafterProcess] = []
        for name, drafter in self.drafters_in("process").items():
            settings = self.placement.of_drafter(name)
            for copy in range(settings.count):
                number = f"{name} {copy}" if len(names) > 1 else str(copy)
                needs_scorer = kind_of(drafter).needs_path_scorer
                found.append(DrafterProcess(len(found), name, number, settings, needs_scorer))
        return tuple(found)

    def drafters_in(self, home: Home) -> dict[str, DrafterConfig]:
        """Return the drafters that run in processes of this kind, by name."""
        if self.placement.together:
            return dict(self.engine.named_drafters) if home == "coordinator" else {}
        named = self.engine.named_drafters.items()
        return {name: one for name, one in named if kind_of(one).home == home}

    def limits(self, max_step_seconds: float) -> RpcLimits:
        """Return the RPC limits of a role whose steps take up to `max_step_seconds`."""
        return RpcLimits(
            max_message_bytes=self.rpc.max_message_bytes, max_step_seconds=max_step_seconds
        )

    def coordinator_limits(self) -> RpcLimits:
        """Return the RPC limits of the coordinator: one call for each request that it admits."""
        num_requests = self.engine.target.max_sequences + self.engine.coordinator.max_waiting
        return RpcLimits(
            max_message_bytes=self.rpc.max_message_bytes,
            max_step_seconds=self.deadlines.answer_seconds,
            max_calls_per_method=num_requests + _MAX_OTHER_CALLS,
        )

    def security(self, token: str) -> Security:
        tls = self.rpc.tls
        return Security(token, TlsFiles(**tls.model_dump()) if tls is not None else None)


def load_pipeline(path: Path) -> PipelineConfig:
    """Read a YAML file. Raises ConfigError with the key, the value and what is valid."""
    return parse_pipeline(read_yaml(path))


def parse_pipeline(data: dict[str, Any]) -> PipelineConfig:
    """Validate plain data. Missing keys are filled in from the pair named by `engine.preset`.

    Raises ConfigError.
    """
    engine = data.get("engine")
    if isinstance(engine, dict):
        data = {**data, "engine": fill_in_preset(engine, "engine.preset")}
    return validate(PipelineConfig, data, ["engine.preset"])

"""Configuration of where roles run: what each takes of its node, and which nodes it may run on."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from diffuspec.core.validation import Section

SHARE_DIGITS = 4  # the resolution that Ray uses for resources

_MIN_SHARE = 10**-SHARE_DIGITS
_MAX_GPUS = 16


def round_share(amount: float) -> float:
    """Return an amount of a resource rounded as Ray does."""
    return round(amount, SHARE_DIGITS)


_NODE = "Nodes that it may run on."

Strategy = Literal["PACK", "STRICT_PACK", "STRICT_SPREAD"]
Share = Annotated[float, Field(ge=_MIN_SHARE, le=1_000_000), AfterValidator(round_share)]

# Kubernetes' label syntax, which Ray shares; a value may also be a selector such as !in(a,b).
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"([A-Za-z0-9.-]{{0,252}}[A-Za-z0-9]/)?{_LABEL}")
_LABEL_VALUE = re.compile(rf"(!?{_LABEL}|!?(in)?\({_LABEL}(,{_LABEL})*\))?")


def _check_gpus(name: str, num_gpus: float) -> None:
    if num_gpus != round_share(num_gpus):
        raise ValueError(f"{name} must be a multiple of {_MIN_SHARE}, got {num_gpus:g}")
    if num_gpus > 1 and not float(num_gpus).is_integer():
        raise ValueError(f"{name} must be a share of one GPU or whole GPUs, got {num_gpus:g}")


class RoleSettings(Section):
    """The resources of its node that one actor of a role takes."""

    num_cpus: Share = Field(1.0, description="CPUs to reserve; may be a fraction of one.")
    num_gpus: float = Field(
        0.0,
        ge=0,
        le=_MAX_GPUS,
        description="GPUs to reserve: a whole number, or a fraction of one.",
    )
    num_threads: int = Field(
        1, ge=1, le=256, description="Threads for computation on the CPU, in each process."
    )

    @model_validator(mode="after")
    def _whole_gpus_or_a_share(self) -> Self:
        _check_gpus("num_gpus", self.num_gpus)
        return self


class NodeSettings(Section):
    """The nodes of the cluster that a role may run on; by default any."""

    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels that the node must have. A value may be a Ray selector: !a, in(a,b), "
        "!in(a,b).",
    )
    resources: dict[str, Share] = Field(
        default_factory=dict,
        description="Amounts of Ray's custom resources to reserve on the node.",
    )

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

    node: NodeSettings = Field(NodeSettings(), description=_NODE)


class DrafterSettings(RoleSettings):
    """Each drafter. A path scorer runs beside it, on the same GPU if it has a share of one."""

    count: int = Field(
        1, ge=1, le=64, description="Number of processes of a drafter, each with its own model."
    )
    node: NodeSettings = Field(NodeSettings(), description=_NODE)


class VerifierSettings(RoleSettings):
    """Each rank of the verifier."""

    tensor_parallel: int = Field(
        1, ge=1, le=_MAX_GPUS, description="Number of ranks over which the target is sharded."
    )
    spans_nodes: bool = Field(
        False,
        description="Whether ranks may run on several nodes; otherwise all run on one. gloo and "
        "NCCL, by which they exchange data, check no token and encrypt nothing: use it only in a "
        "private network.",
    )
    node: NodeSettings = Field(NodeSettings(), description=_NODE)

    @model_validator(mode="after")
    def _a_gpu_per_rank(self) -> Self:
        if self.tensor_parallel > 1 and self.num_gpus not in (0, 1):
            raise ValueError(
                f"num_gpus is per rank: with tensor_parallel {self.tensor_parallel} it must be 1, "
                f"or 0 on CPUs, got {self.num_gpus}"
            )
        return self


class PlacementSettings(Section):
    """What each role reserves, and where: coordinator, each drafter with its scorer, verifier."""

    together: bool = Field(
        False,
        description="Run all roles in the coordinator's process, with the resources of the section "
        "coordinator; the sections of the other roles must be left out.",
    )
    strategy: Strategy = Field(
        "PACK",
        description="STRICT_SPREAD: coordinator, verifier and each drafter on nodes of their own; "
        "STRICT_PACK: all on one node; PACK: as Ray finds room on the nodes that roles name.",
    )
    coordinator: CoordinatorSettings = Field(
        CoordinatorSettings(), description="Resources of the coordinator."
    )
    drafter: DrafterSettings = Field(
        DrafterSettings(),
        description="Number of processes of each drafter that has a model, and the resources of "
        "each process; other drafters run in the process of the coordinator or the "
        "verifier.",
    )
    drafters: dict[str, DrafterSettings] = Field(
        {}, description="The same for individual drafters, by name, instead of the section drafter."
    )
    path_scorer: RoleSettings = Field(
        RoleSettings(),
        description="Resources of each drafter's path scorer, on the same node; drafters that do "
        "not produce lattices have none.",
    )
    verifier: VerifierSettings = Field(
        VerifierSettings(), description="Resources of each rank of the verifier."
    )

    @model_validator(mode="after")
    def _one_section_if_together(self) -> Self:
        others = self.model_fields_set & {"drafter", "drafters", "path_scorer", "verifier"}
        if self.together and others:
            raise ValueError(
                "together: true runs all roles in the coordinator's process, with the resources of "
                f"the section coordinator: leave out {', '.join(sorted(others))}"
            )
        return self

    @model_validator(mode="after")
    def _drafter_and_scorer_share(self) -> Self:
        named = {f"drafters.{name}": settings for name, settings in self.drafters.items()}
        for section, settings in {"drafter": self.drafter, **named}.items():
            what = f"{section}.num_gpus and path_scorer.num_gpus together"
            _check_gpus(what, self.shared_gpus(settings))
        return self

    def of_drafter(self, name: str) -> DrafterSettings:
        return self.drafters.get(name, self.drafter)

    def shared_gpus(self, drafter: DrafterSettings) -> float:
        """Return the number of GPUs in the bundle that a drafter shares with its path scorer."""
        return round_share(drafter.num_gpus + self.path_scorer.num_gpus)

"""What KubeRay's resources and the pods in them may hold, as far as our manifests use it.

Names, types and checks are those of Kubernetes 1.28 and of KubeRay's sources after 1.6 (2026).
Any other key is an error: it is misspelt, or has to be looked up there and added here. There is no
readinessProbe on purpose: KubeRay's own asks the workers of a RayService for Serve's proxy, and so
keeps pods without a proxy out of the service.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?$")] | int
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Id = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
# KubeRay adds six characters for the name of the cluster, and "-serve-svc" to that.
ResourceName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,45}[a-z0-9])?$")]
Label = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$")]
LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
Number = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Seccomp(Part):
    type: Literal["RuntimeDefault"]


class PodSecurity(Part):
    runAsNonRoot: Literal[True]
    runAsUser: Id
    runAsGroup: Id
    fsGroup: Id
    seccompProfile: Seccomp


class Capabilities(Part):
    drop: list[Literal["ALL"]]


class ContainerSecurity(Part):
    allowPrivilegeEscalation: Literal[False]
    capabilities: Capabilities


class Port(Part):
    name: Name
    containerPort: Annotated[int, Field(ge=1, le=65535)]


class Resources(Part):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


class Mount(Part):
    name: Name
    mountPath: AbsolutePath
    readOnly: bool = False


class Container(Part):
    name: Name
    image: str
    securityContext: ContainerSecurity
    resources: Resources
    ports: list[Port] = []
    volumeMounts: list[Mount] = []


class Item(Part):
    key: str
    path: str


class Secret(Part):
    secretName: Name
    items: list[Item] | None = None


class Claim(Part):
    claimName: Name
    readOnly: bool = False


class EmptyDir(Part):
    medium: Literal["Memory", ""] = ""
    sizeLimit: Quantity


class Volume(Part):
    name: Name
    secret: Secret | None = None
    persistentVolumeClaim: Claim | None = None
    emptyDir: EmptyDir | None = None


class PodSpec(Part):
    containers: list[Container]
    securityContext: PodSecurity
    terminationGracePeriodSeconds: int | None = None
    volumes: list[Volume] = []


class PodTemplate(Part):
    spec: PodSpec


class Group(Part):
    template: PodTemplate
    rayStartParams: dict[str, str] = {}
    labels: dict[LabelKey, Label] = {}  # of the pods and of Ray's node
    resources: dict[str, Number] = {}  # what Ray counts; the pod's are those of its container

    @model_validator(mode="after")
    def _nothing_is_said_twice(self) -> Self:
        twice = {"labels"} & self.rayStartParams.keys()
        if self.resources:
            twice |= {"num-cpus", "num-gpus", "memory", "resources"} & self.rayStartParams.keys()
        if twice:
            raise ValueError(f"rayStartParams has {sorted(twice)}, which are keys of the group")
        return self


class WorkerGroup(Group):
    groupName: Name
    replicas: Count
    minReplicas: Count
    maxReplicas: Count

    @model_validator(mode="after")
    def _replicas_are_in_order(self) -> Self:
        if not self.minReplicas <= self.replicas <= self.maxReplicas:
            raise ValueError("replicas are not between minReplicas and maxReplicas")
        return self


class AuthOptions(Part):
    mode: Literal["disabled", "token"]


class SecretKey(Part):
    name: Name
    key: str


class ValueSource(Part):
    secretKeyRef: SecretKey


class Credential(Part):
    valueFrom: ValueSource


class GcsFaultTolerance(Part):
    redisAddress: str
    redisPassword: Credential


class RayClusterSpec(Part):
    rayVersion: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
    headGroupSpec: Group
    workerGroupSpecs: list[WorkerGroup] = []
    authOptions: AuthOptions
    gcsFaultToleranceOptions: GcsFaultTolerance | None = None

    @model_validator(mode="after")
    def _ray_knows_tokens(self) -> Self:
        major, minor, _ = self.rayVersion.split(".")
        if self.authOptions.mode == "token" and (int(major), int(minor)) < (2, 52):
            raise ValueError(f"Ray {self.rayVersion} knows no tokens; 2.52.0 and newer do")
        return self


class Metadata(Part):
    name: ResourceName


class RayServiceSpec(Part):
    serveConfigV2: str
    rayClusterConfig: RayClusterSpec
    rayClusterDeletionDelaySeconds: Count | None = None


class RayService(Part):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayService"]
    metadata: Metadata
    spec: RayServiceSpec

    @property
    def cluster(self) -> RayClusterSpec:
        return self.spec.rayClusterConfig


class RayJobSpec(Part):
    entrypoint: str
    rayClusterSpec: RayClusterSpec
    backoffLimit: Count = 0
    activeDeadlineSeconds: Id | None = None
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: Count = 0

    @model_validator(mode="after")
    def _only_what_is_shut_down_has_a_delay(self) -> Self:
        if self.ttlSecondsAfterFinished and not self.shutdownAfterJobFinishes:
            raise ValueError("ttlSecondsAfterFinished needs shutdownAfterJobFinishes")
        return self


class RayJob(Part):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec

    @property
    def cluster(self) -> RayClusterSpec:
        return self.spec.rayClusterSpec


KINDS: dict[str, type[RayService] | type[RayJob]] = {"RayService": RayService, "RayJob": RayJob}

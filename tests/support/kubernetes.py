"""What KubeRay's resources and the pods in them may hold, as far as our manifests use it.

The names and types are those of KubeRay 1.6 and Kubernetes 1.28. Anything else is an error: a
misspelt key must not pass, nor a new one that nobody looked up.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?$")] | int
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Id = Annotated[int, Field(ge=1)]
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
    rayStartParams: dict[str, str]
    labels: dict[str, str] = {}
    resources: dict[str, str] = {}


class WorkerGroup(Group):
    groupName: Name
    replicas: int
    minReplicas: int
    maxReplicas: int


class AuthOptions(Part):
    mode: Literal["disabled", "token"]


class RayClusterSpec(Part):
    rayVersion: str
    headGroupSpec: Group
    workerGroupSpecs: list[WorkerGroup] = []
    authOptions: AuthOptions


class Metadata(Part):
    name: Name


class RayServiceSpec(Part):
    serveConfigV2: str
    rayClusterConfig: RayClusterSpec
    rayClusterDeletionDelaySeconds: Annotated[int, Field(ge=0)] | None = None


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
    backoffLimit: int = 0
    activeDeadlineSeconds: Id | None = None
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: int = 0


class RayJob(Part):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec

    @property
    def cluster(self) -> RayClusterSpec:
        return self.spec.rayClusterSpec


KINDS: dict[str, type[RayService] | type[RayJob]] = {"RayService": RayService, "RayJob": RayJob}

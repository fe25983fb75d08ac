"""Manifests for Kubernetes: KubeRay's schema takes them, and what they name fits what we have."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from actors.bundles import Node, explain_shortage, make_groups
from actors.service.settings import parse_service
from actors.settings import PipelineConfig, load_pipeline
from deploy.batch import app as batch
from deploy.serve import unknown_keys
from tests.support.kubernetes import KINDS, Group, RayJob, RayService

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy" / "kuberay").glob("*.yaml"))
SERVICES = [path for path in FILES if path.name.startswith("rayservice")]

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
every_service = pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)


def read(path: Path) -> Any:
    data = yaml.safe_load(path.read_text())
    return KINDS[data["kind"]].model_validate(data)


def groups(manifest: RayService | RayJob) -> list[Group]:
    return [manifest.cluster.headGroupSpec, *manifest.cluster.workerGroupSpecs]


def answering(manifest: RayService) -> Group:
    """Return the group of the pods with an ingress."""
    found = groups(manifest)
    return next((one for one in found if "coordinator" in one.labels.values()), found[0])


def serve_config(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(read(path).spec.serveConfigV2)
    return data


def node(group: Group) -> Node:
    """Return what Ray knows of a pod of a group: its resources come from limits, unless given."""
    [container] = group.template.spec.containers
    limits = container.resources.limits
    num_cpus = group.rayStartParams.get("num-cpus", limits["cpu"])
    resources = {"CPU": float(num_cpus), "GPU": float(limits.get("nvidia.com/gpu", 0))}
    given = {name: float(amount) for name, amount in group.resources.items()}
    assert given.get("CPU", resources["CPU"]) == resources["CPU"]
    assert given.get("GPU", resources["GPU"]) == resources["GPU"]
    return Node(resources | given, group.labels)


@every_file
def test_every_key_is_one_of_kuberay_or_kubernetes(path):
    assert read(path).metadata.name.startswith("diffuspec")


def test_a_misspelt_key_is_found():
    data = yaml.safe_load(SERVICES[0].read_text())
    data["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["volume"] = []
    with pytest.raises(ValidationError, match="volume"):
        RayService.model_validate(data)


HEAD = "spec.rayClusterConfig.headGroupSpec"
WORKER = "spec.rayClusterConfig.workerGroupSpecs.0"
DRAFTER = "spec.rayClusterConfig.workerGroupSpecs.1"
REFUSED = [  # by KubeRay: the file, the path of a key, a value, and a word of the reason
    ("rayservice.yaml", "metadata.name", "1st", "pattern"),
    ("rayservice.yaml", "metadata.name", "d" * 48, "pattern"),
    ("rayservice.yaml", "spec.rayClusterConfig.rayVersion", "2.51.0", "tokens"),
    ("rayservice.yaml", f"{HEAD}.rayStartParams.labels", "a=b", "labels"),
    ("rayservice_dream_qwen.yaml", f"{WORKER}.minReplicas", 3, "replicas"),
    ("rayservice_dream_qwen.yaml", f"{DRAFTER}.rayStartParams.num-cpus", "8", "num-cpus"),
    ("rayjob.yaml", "spec.shutdownAfterJobFinishes", False, "ttlSecondsAfterFinished"),
    ("rayjob.yaml", "spec.backoffLimit", -1, "backoffLimit"),
]


@pytest.mark.parametrize(("name", "key", "value", "reason"), REFUSED)
def test_what_kuberay_refuses_is_refused_here(name: str, key: str, value: object, reason: str):
    data = yaml.safe_load((ROOT / "deploy" / "kuberay" / name).read_text())
    *path, last = key.split(".")
    place: Any = data
    for step in path:
        place = place[int(step) if step.isdecimal() else step]
    place[last] = value
    with pytest.raises(ValidationError, match=reason):
        KINDS[data["kind"]].model_validate(data)


@every_file
def test_ray_is_the_version_of_the_image_and_asks_for_a_token(path):
    cluster = read(path).cluster
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and cluster.rayVersion == pinned[1]
    assert cluster.authOptions.mode == "token"


@every_file
def test_pods_of_a_manifest_run_one_image_and_mount_volumes_that_they_have(path):
    images = set()
    for group in groups(read(path)):
        spec = group.template.spec
        [container] = spec.containers
        images.add(container.image)
        mounted = [mount.name for mount in container.volumeMounts]
        assert sorted(mounted) == sorted(volume.name for volume in spec.volumes)
        assert container.resources.requests == container.resources.limits
    assert len(images) == 1


@every_service
def test_the_application_is_one_that_serve_and_we_take(path):
    data = serve_config(path)
    assert not [*unknown_keys(ServeDeploySchema, data)]
    ServeDeploySchema.model_validate(data)
    [application] = data["applications"]
    assert application["import_path"] == "deploy.app:build"
    config = parse_service(application["args"], ROOT)
    names = {one["name"] for one in application["deployments"]}
    assert {"Ingress", "Pipeline"} <= names <= {"Ingress", "Directory", "Pipeline"}
    [port] = [
        port.containerPort
        for port in read(path).cluster.headGroupSpec.template.spec.containers[0].ports
        if port.name == "serve"
    ]
    assert port == data["http_options"]["port"]
    assert data["http_options"]["host"] == "0.0.0.0" and config.http.api_keys is not None


@every_service
def test_the_keys_of_the_service_are_mounted_where_it_reads_them(path):
    [application] = serve_config(path)["applications"]
    keys = Path(application["args"]["http"]["api_keys"])
    [container] = answering(read(path)).template.spec.containers
    [mount] = [mount for mount in container.volumeMounts if mount.name == "keys"]
    assert keys == Path(mount.mountPath) / "keys.yaml" and mount.readOnly


def pipeline(path: Path) -> PipelineConfig:
    [application] = serve_config(path)["applications"]
    return load_pipeline(ROOT / application["args"]["pipeline"])


@every_service
def test_the_pipeline_fits_the_pods_beside_the_ingress(path):
    config = pipeline(path)
    manifest = read(path)
    nodes = [node(group) for group in groups(manifest)]
    home = groups(manifest).index(answering(manifest))
    [application] = serve_config(path)["applications"]
    [ingress] = [one for one in application["deployments"] if one["name"] == "Ingress"]
    share = ingress.get("ray_actor_options", {}).get("num_cpus", 0.5)
    num_here = ingress.get("max_replicas_per_node", ingress["num_replicas"])
    taken = {"CPU": nodes[home].resources["CPU"] - share * num_here}
    nodes[home] = Node({**nodes[home].resources, **taken}, nodes[home].labels)
    [reason] = explain_shortage(make_groups(config), nodes)
    assert "in use by others" in reason  # nothing else to complain of


def test_files_of_the_large_pipeline_are_mounted_in_every_pod():
    [path] = [path for path in SERVICES if "dream" in path.name]
    config = pipeline(path)
    tls = config.rpc.tls
    assert tls is not None and config.engine.drafter is not None
    for group in groups(read(path)):
        spec = group.template.spec
        mounts = {one.name: Path(one.mountPath) for one in spec.containers[0].volumeMounts}
        [secret] = [one.secret for one in spec.volumes if one.name == "tls"]
        assert secret is not None and secret.items is not None
        found = {mounts["tls"] / item.path for item in secret.items}
        assert {tls.ca, tls.certificate, tls.key} <= found
        assert config.engine.target.path.is_relative_to(mounts["models"])


def test_pods_live_long_enough_to_drain():
    for path in SERVICES:
        drain = pipeline(path).deadlines.drain_seconds
        for group in groups(read(path)):
            grace = group.template.spec.terminationGracePeriodSeconds
            assert grace is not None and grace >= drain


def test_the_job_is_a_batch_on_a_volume_of_its_own():
    [path] = [path for path in FILES if path.name.startswith("rayjob")]
    job = read(path)
    words = shlex.split(job.spec.entrypoint)
    assert words[:3] == ["python", "-m", "deploy.batch"]
    known = {option for one in typer.main.get_command(batch).params for option in one.opts}
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options.keys() <= known
    [container] = job.cluster.headGroupSpec.template.spec.containers
    [mount] = [mount for mount in container.volumeMounts if mount.name == "data"]
    assert not mount.readOnly
    for name in ("--input", "--output"):
        assert Path(options[name]).is_relative_to(mount.mountPath)
    config = load_pipeline(ROOT / "deploy" / "pipeline.yaml")
    [reason] = explain_shortage(make_groups(config), [node(job.cluster.headGroupSpec)])
    assert "in use by others" in reason

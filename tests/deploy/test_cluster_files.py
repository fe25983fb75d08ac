"""Cluster and pipeline files: Ray's own validator takes them, and they fit each other."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from actors.bundles import Node, explain_shortage, make_bundles
from actors.settings import load_pipeline

ROOT = Path(__file__).parents[2]
AWS, LOCAL = ROOT / "ray_cluster.yaml", ROOT / "deploy" / "cluster" / "ray_cluster_local.yaml"
START_COMMANDS = ("head_start_ray_commands", "worker_start_ray_commands")


def read(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    return config


@pytest.mark.parametrize("path", [AWS, LOCAL], ids=lambda path: path.name)
def test_ray_takes_the_cluster_file(path):
    config = prepare_config(read(path))
    validate_config(config)
    assert config["cluster_name"] == "diffuspec"


@pytest.mark.parametrize("path", [AWS, LOCAL], ids=lambda path: path.name)
def test_every_ray_process_has_tls_and_a_token(path):
    config = read(path)
    assert "~/.ray/auth_token" in config["file_mounts"]
    for command in (c for key in START_COMMANDS for c in config[key]):
        assert command.startswith("source ~/node.env;")
    assert any("deploy/cluster/node.env" in command for command in config["setup_commands"])
    assert any("certificates.sh node" in command for command in config["setup_commands"])
    environment = (ROOT / "deploy" / "cluster" / "node.env").read_text()
    assert "RAY_AUTH_MODE=token" in environment and "RAY_USE_TLS=1" in environment


@pytest.mark.parametrize("path", [AWS, LOCAL], ids=lambda path: path.name)
def test_the_dashboard_listens_to_its_own_machine_alone(path):
    heads = [c for c in read(path)["head_start_ray_commands"] if "--head" in c]
    assert heads and all("--dashboard-host=127.0.0.1" in command for command in heads)


def test_the_secret_of_the_authority_stays_out_of_what_is_copied_and_committed():
    assert "certificates/**" in read(AWS)["rsync_exclude"]
    assert "certificates/" in (ROOT / ".gitignore").read_text().split()
    assert "certificates/" in (ROOT / ".rayignore").read_text().split()


def test_the_large_pipeline_fits_the_cluster_on_aws():
    config = load_pipeline(ROOT / "deploy" / "dream_qwen.yaml")
    types = read(AWS)["available_node_types"]
    nodes = [Node(kind["resources"], kind["labels"]) for kind in types.values()]
    [reason] = explain_shortage(make_bundles(config), config.placement.strategy, nodes)
    assert "in use by others" in reason  # nothing else to complain of
    assert config.rpc.tls is not None and config.rpc.tls.server_name == "diffuspec"


def test_the_small_pipeline_fits_one_cpu():
    config = load_pipeline(ROOT / "deploy" / "pipeline.yaml")
    [reason] = explain_shortage(make_bundles(config), "PACK", [Node({"CPU": 1}, {})])
    assert "in use by others" in reason


def test_nodes_get_certificates_of_the_cluster_s_authority(tmp_path):
    script = ROOT / "deploy" / "cluster" / "certificates.sh"

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(script), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    authority, node = tmp_path / "authority", tmp_path / "node"
    assert run("authority", authority).returncode == 0
    key = (authority / "ca.key").read_bytes()
    assert run("authority", authority).returncode == 0
    assert (authority / "ca.key").read_bytes() == key  # the second time it is kept
    assert run("node", authority, node).returncode == 0
    assert sorted(path.name for path in node.iterdir()) == ["ca.pem", "node.key", "node.pem"]
    assert (node / "node.key").stat().st_mode & 0o077 == 0
    verified = ["openssl", "verify", "-CAfile", str(node / "ca.pem"), str(node / "node.pem")]
    assert subprocess.run(verified, capture_output=True, check=False).returncode == 0
    assert run("nonsense").returncode == 2

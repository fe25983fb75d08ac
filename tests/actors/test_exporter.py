"""Series of pipelines through Ray's own exporter, as Prometheus reads them on a cluster."""

import asyncio
import urllib.request

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray.cluster_utils import Cluster

from actors.exporter import RayExporter
from actors.pipeline import Pipeline
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import Prompt, StepStats
from diffuspec.telemetry.metrics import Metrics
from tests.actors.conftest import CPU, tiny_pipeline

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PROMPT: Prompt = [{"role": "user", "content": "What is the capital of France?"}]
SAMPLING = SamplingParams(max_tokens=16, ignore_eos=True)


def exported() -> dict[tuple[str, str], float]:
    """Return the values of our series at this node's metrics port, by name and pipeline."""
    here = ray.get_runtime_context().get_node_id()
    [node] = [node for node in ray.nodes() if node["NodeID"] == here]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return {
        (sample.name, sample.labels["pipeline"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ray_diffuspec_")
        and "pipeline" in sample.labels  # not what ingresses of other tests have left
        and sample.labels.get("le", "+Inf") == "+Inf"
    }


async def test_pipelines_are_told_apart_by_their_label(cluster: Cluster) -> None:
    config = tiny_pipeline({"target": {**CPU, "max_sequences": 1}, "drafter": {"kind": "pld"}})
    other = Metrics()
    other.observe_step(StepStats(0, 0, 0, 3, step_seconds=1.0))
    async with Pipeline(config, name="one") as pipeline:
        tokens = [i async for step in pipeline.stream(PROMPT, SAMPLING) for i in step.token_ids]
        RayExporter(other.registry, {"pipeline": "two"}).export()
        wanted = "ray_diffuspec_generation_tokens_total"
        async with asyncio.timeout(60):
            while True:
                found = await asyncio.to_thread(exported)
                if found.get((wanted, "one"), 0) >= len(tokens) and (wanted, "two") in found:
                    break
                await asyncio.sleep(0.5)
    assert found[wanted, "two"] == 3
    assert found["ray_diffuspec_inter_token_latency_seconds_bucket", "two"] == 3
    assert found["ray_diffuspec_max_requests_running", "one"] == 1

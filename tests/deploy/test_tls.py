"""TLS: mutual among roles, by `deploy/cluster/certificates.sh`, and of the service to clients."""

import ssl
import subprocess
from functools import partial
from pathlib import Path

import httpx2
import pytest
from ray.serve.schema import HTTPOptionsSchema

from actors.roles.coordinator import CoordinatorActor, verifier_at
from actors.roles.drafter import DrafterActor
from actors.roles.path_scorer import PathScorerActor
from actors.roles.verifier import VerifierRank
from actors.settings import PipelineConfig
from deploy.serve import answers, url_of
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import Security
from diffuspec.serve.server import Tls
from diffuspec.serve.settings import ServeSettings
from tests.actors.conftest import tiny_pipeline
from tests.support.service import fake_engine, serving

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
TOKEN = "a-token-for-tests"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    directory = tmp_path_factory.mktemp("tls")
    script, authority, node = (
        ROOT / "deploy" / "cluster" / "certificates.sh",
        directory / "ca",
        directory / "n",
    )
    for arguments in (("authority", authority), ("node", authority, node)):
        subprocess.run(["bash", script, *arguments], check=True, capture_output=True)
    files = {"ca": node / "ca.pem", "certificate": node / "node.pem", "key": node / "node.key"}
    return tiny_pipeline(rpc={"tls": {**files, "server_name": "diffuspec"}})


async def test_all_roles_speak_tls_and_a_plaintext_client_is_refused(config):
    verifier, coordinator = VerifierRank(config, TOKEN), CoordinatorActor(config, TOKEN)
    scorer, drafter = PathScorerActor(config, TOKEN), DrafterActor(config, TOKEN)
    address = await verifier.start("", HOST)
    ready = await coordinator.start(partial(verifier_at, address, config, TOKEN), HOST)
    scorer_address = await scorer.start(ready.info, HOST)
    drafter_address = await drafter.start(ready.info, ready.vocabulary, scorer_address, HOST)
    await coordinator.connect_drafter("drafter 0", drafter_address)
    client = await RemoteCoordinator.connect(ready.address, config.security(TOKEN))
    sampling = SamplingParams(max_tokens=12)
    steps = [step async for step in client.stream(MESSAGES, sampling, DRAFTED)]
    assert any(step.step.num_tree_nodes for step in steps)
    await client.close()
    with pytest.raises(TransportError):
        await RemoteCoordinator.connect(ready.address, Security(TOKEN))
    for actor in (coordinator, drafter, scorer, verifier):
        await actor.stop()


def test_clients_are_answered_over_tls_and_the_script_that_starts_serve_sees_it(config):
    files = config.rpc.tls
    assert files is not None
    tls = Tls(files.certificate, files.key)
    trusted = ssl.create_default_context(cafile=files.ca)
    trusted.check_hostname = False  # the certificate is a node's
    with serving(fake_engine, ServeSettings(), tls) as service:
        assert service.url.startswith("https://")
        assert httpx2.get(f"{service.url}/health", verify=trusted).is_success
        assert answers(f"{service.url}/ready")
        plain = service.url.replace("https", "http")
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{plain}/health")
    http = HTTPOptionsSchema(host=HOST, port=8000, ssl_certfile="a.pem", ssl_keyfile="a.key")
    assert url_of(http) == "https://127.0.0.1:8000"

"""TLS of the service to its clients; tests/actors/test_pipeline.py has that among roles."""

import ssl

import httpx2
import pytest
from ray.serve.schema import HTTPOptionsSchema

from deploy.serve import answers, url_of
from diffuspec.serve.server import Tls
from diffuspec.serve.settings import ServeSettings
from tests.actors.conftest import make_certificates
from tests.support.service import fake_engine, serving


def test_clients_are_answered_over_tls_and_the_script_that_starts_serve_sees_it(tmp_path):
    files = make_certificates(tmp_path)
    trusted = ssl.create_default_context(cafile=files["ca"])
    trusted.check_hostname = False  # the certificate is a node's
    tls = Tls(files["certificate"], files["key"])
    with serving(fake_engine, ServeSettings(), tls) as service:
        assert service.url.startswith("https://")
        assert httpx2.get(f"{service.url}/health", verify=trusted).is_success
        assert answers(f"{service.url}/ready")
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{service.url.replace('https', 'http')}/health")
    http = HTTPOptionsSchema(host="127.0.0.1", port=8000, ssl_certfile="a", ssl_keyfile="b")
    assert url_of(http) == "https://127.0.0.1:8000"

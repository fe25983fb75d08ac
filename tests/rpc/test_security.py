"""Who may speak to a role."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from diffuspec.core.addresses import is_loopback
from diffuspec.core.errors import ConfigError, VerifierUnavailableError
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.security import Security, TlsFiles, new_token
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import VerifierServicer
from diffuspec.rpc.services import HEALTH_SERVICE, VERIFIER_SERVICE
from tests.rpc.certificates import Authority
from tests.rpc.requests import verify_request
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.serving import serving

WRONG = (
    (),
    (("authorization", ""),),
    (("authorization", "Bearer "),),
    (("authorization", "Bearer wrong"),),
    (("other", "Bearer {token}"),),
    (("authorization", "{token}"),),
)


@pytest.mark.parametrize("metadata", WRONG, ids=[str(one) for one in WRONG])
async def test_every_call_needs_the_token(metadata, security):
    metadata = tuple((key, value.format(token=security.token)) for key, value in metadata)
    async with serving(VerifierServicer(FakeVerifier()), security=security) as wire:
        channel = wire.channel()
        unary: Any = channel.unary_unary
        calls = [
            unary(f"/{VERIFIER_SERVICE}/GetInfo")(b"", metadata=metadata),
            unary(f"/{HEALTH_SERVICE}/Check")(b"", metadata=metadata),
            unary("/no.such.Service/Method")(b"", metadata=metadata),
        ]
        stream: Any = channel.stream_stream(f"/{VERIFIER_SERVICE}/Verify")(metadata=metadata)
        for call in (*calls, stream.read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert security.token not in str(caught.value)


async def test_a_client_with_another_token_is_told_so(security):
    async with serving(VerifierServicer(FakeVerifier()), security=security) as wire:
        with pytest.raises(ConfigError, match="token is missing or wrong"):
            await RemoteVerifier.connect(wire.address, Security("another"))


def test_a_token_is_long_and_new_and_not_shown():
    first, second = new_token(), new_token()
    assert first != second and len(first) >= 43
    assert first not in repr(Security(first))


@pytest.mark.parametrize("token", ["", "späm", "a\nb", "a ", "a b"])
def test_a_token_must_fit_a_header(token):
    with pytest.raises(ConfigError, match="printable ASCII"):
        Security(token)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_the_network(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", socket.gethostname() + ".lan"])
def test_no_port_without_tls_is_opened_to_the_network(host, security):
    with pytest.raises(ConfigError, match=r"without TLS.*TLS files, or serve on 127"):
        RoleServer([VerifierServicer(FakeVerifier())], security, host=host)


# ---- mutual TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> TlsFiles:
    return authority.issue("server", "127.0.0.1", "roles.diffuspec.internal")


@pytest.fixture(scope="module")
def client_files(authority: Authority) -> TlsFiles:
    return authority.issue("client", "coordinator")


TOKEN = new_token()


def server_of(files: TlsFiles, host: str = "127.0.0.1", token: str = TOKEN) -> RoleServer:
    return RoleServer([VerifierServicer(FakeVerifier())], Security(token, files), host=host)


async def client_of(address: str, files: TlsFiles | None, token: str = TOKEN) -> RemoteVerifier:
    return await RemoteVerifier.connect(address, Security(token, files), deadline_seconds=5)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_both_sides_show_certificates_also_to_the_network(server_files, client_files, host):
    async with server_of(server_files, host) as server:
        remote = await client_of(server.address.replace("0.0.0.0", "127.0.0.1"), client_files)
        assert remote.info == FAKE_TARGET
        assert await remote.verify([verify_request(1)])
        assert await remote.check_health(5)
        await remote.close()


async def test_one_certificate_can_serve_unknown_addresses(authority, client_files):
    async with server_of(authority.issue("shared", "roles.diffuspec.internal")) as server:
        with pytest.raises(VerifierUnavailableError):
            await client_of(server.address, client_files)
        named = replace(client_files, server_name="roles.diffuspec.internal")
        await (await client_of(server.address, named)).close()


async def test_who_does_not_belong_is_refused(server_files, tmp_path):
    stranger = Authority(tmp_path).issue("stranger", "127.0.0.1")
    strangers_key = replace(stranger, ca=server_files.ca)  # trusts us, is not trusted
    async with server_of(server_files) as server:
        for tls in (None, stranger, strangers_key):
            with pytest.raises(VerifierUnavailableError):
                await client_of(server.address, tls)
        await refused_without_certificate(server.address, server_files)


async def refused_without_certificate(address: str, files: TlsFiles) -> None:
    credentials = grpc.ssl_channel_credentials(files.ca.read_bytes())
    async with grpc.aio.secure_channel(address, credentials) as channel:
        check = channel.unary_unary(
            f"/{HEALTH_SERVICE}/Check",
            HealthCheckRequest.SerializeToString,
            HealthCheckResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(HealthCheckRequest(), timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_tls_without_the_token_is_not_enough(server_files, client_files):
    async with server_of(server_files) as server:
        with pytest.raises(ConfigError, match="token"):
            await client_of(server.address, client_files, "wrong")


def test_missing_tls_files_are_named(server_files):
    with pytest.raises(ConfigError, match=r"/no/such\.key"):
        server_of(replace(server_files, key=Path("/no/such.key")))


async def test_a_port_in_use_is_named(security):
    async with RoleServer([VerifierServicer(FakeVerifier())], security) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot serve on 127.0.0.1:{port}: [^;]+$"):
            async with RoleServer([VerifierServicer(FakeVerifier())], security, port=port):
                pass


async def test_the_roles_can_be_served_on_ipv6(security):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    async with RoleServer([VerifierServicer(FakeVerifier())], security, host="::1") as server:
        assert server.address.startswith("[::1]:")
        remote = await RemoteVerifier.connect(server.address, security)
        await remote.close()

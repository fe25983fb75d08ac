"""The certificate that a pipeline makes for itself admits its own roles, and nobody else."""

from collections.abc import AsyncIterator

import pytest

from actors.certificate import make_certificate
from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import VerifierServicer
from tests.support.fakes import FakeVerifier

OWN = Security("secret", make_certificate())


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with RoleServer([VerifierServicer(FakeVerifier())], OWN, "0.0.0.0") as server:
        yield server.address.replace("0.0.0.0", "127.0.0.1")


async def test_both_sides_show_it(address):
    remote = await RemoteVerifier.connect(address, OWN)
    assert remote.info == FakeVerifier().info
    await remote.close()


@pytest.mark.parametrize("tls", [None, make_certificate()], ids=["none", "another pipeline's"])
async def test_others_are_not_admitted(address, tls):
    with pytest.raises(VerifierUnavailableError):
        await RemoteVerifier.connect(address, Security("secret", tls))


def test_key_and_token_are_in_no_message():
    assert "KEY" not in repr(OWN) and "secret" not in repr(OWN)

"""Attacks on a service over fake roles: what each is answered, and that nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.abuse.attack import Attack, Clients
from benchmarks.abuse.run import attacks
from benchmarks.abuse.target import Target
from diffuspec.serve.settings import ServeSettings
from tests.support.service import Service, fake_engine, serving

SETTINGS = ServeSettings(header_seconds=0.5, body_seconds=0.5)
# Not over fake roles: what takes 30 s to be dropped, needs time to be tokenised, or a template.
_LEFT_OUT = ("a stream that is not read", "24 bodies of 1 MB", "a template's tokens")
ATTACKS = [
    attack
    for attack in attacks(has_keys=False, has_forms=False)
    if not attack.name.startswith(_LEFT_OUT)
]
ANSWERS = {
    "n of 10^9": "400 n",
    "another site's Host": "403 host_not_allowed",
    "headers of 200 KiB": "connection closed",
    "headers, a byte in 2 s": "connection closed",
    "a body, a byte in 2 s": "408 body_timeout",
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving(fake_engine, SETTINGS) as service:
        yield service


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_an_attack_is_answered_as_expected_and_leaves_nothing(
    attack: Attack, service: Service
):
    target = Target(service.url)
    answers = await attack.send(Clients(target, target, target), 0)
    assert attack.unexpected(answers) == []
    assert answers[0] == ANSWERS.get(attack.name, answers[0])
    assert service.engine.num_requests == 0

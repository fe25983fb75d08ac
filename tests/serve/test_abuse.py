"""Everything that `python -m deploy.abuse` sends, to a service over fake roles."""

from __future__ import annotations

from deploy.abuse import abuse
from diffuspec.serve.settings import ServeSettings
from tests.support.service import fake_engine, serving

SETTINGS = ServeSettings(header_seconds=0.5, body_seconds=0.5)


async def test_abuse_is_answered_by_name_or_cut_off_and_leaves_nothing():
    with serving(fake_engine, SETTINGS) as service:
        found = await abuse(service.url, has_forms=False, is_patient=False)
        assert service.engine.num_requests == 0
    answers = {finding.name: finding.answer for finding in found}
    assert {name: answer for name, answer in answers.items() if answer[:2] == "20"} == {
        "a time-out of a client's own": "200"
    }
    assert answers["n of 10^9"] == "400 n"
    assert answers["64 MiB, announced"] == answers["64 MiB in chunks"] == "413 body_too_large"
    assert answers["a body as text/plain"] == "415 unsupported_media_type"
    assert answers["another site's Host"] == "403 host_not_allowed"
    assert answers["headers of 200 KiB"] == answers["headers, a byte in 2 s"] == "connection closed"
    assert answers["a body, a byte in 2 s"] == "408 body_timeout"
    assert answers["leave in every phase, 120 times"] == "0 requests run afterwards"

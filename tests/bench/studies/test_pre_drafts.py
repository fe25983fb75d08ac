"""Hit rates of pre-drafts, on fakes whose hit rate is known."""

import numpy as np

from diffuspec.bench.studies.pre_drafts import FAN_OUTS, measure_hit_rates
from diffuspec.core.params import SpeculationParams
from tests.support.fakes import FakeDrafter, FakeVerifier, oracle_of, sometimes_right

PROMPTS = [np.array([n, 7, 9], np.int32) for n in range(4)]
FIXED = SpeculationParams(policy="fixed", num_draft_tokens=6)


def test_hit_rates_are_measured_by_family_and_rise_with_the_number_of_outcomes():
    verifier = FakeVerifier()
    for foresight, low, high in ((1.0, 0.9, 1.0), (0.0, 0.0, 0.5)):
        drafter = FakeDrafter(oracle_of(verifier), sometimes_right, hit_rate=foresight)
        families = {"a": PROMPTS[:2], "b": PROMPTS[2:]}
        results = measure_hit_rates(verifier, drafter, families, FIXED)
        assert [one.family for one in results] == ["a", "b"]
        for one in results:
            rates = [one.hit_rates[fan_out] for fan_out in FAN_OUTS]
            assert rates == sorted(rates) and low <= rates[-1] <= high
            assert one.num_steps > 10 and one.mean_acceptance_length > 1
            assert one.expected[1] <= one.expected[16] <= 1
    assert not verifier.held

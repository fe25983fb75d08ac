"""Steps of random models are timed, and speed-ups computed from them."""

import pytest

from diffuspec.bench.studies import real_sizes
from diffuspec.bench.studies.real_sizes import SMALL, StepTimes, step_table, study_real_sizes


def test_plain_and_drafted_steps_behind_a_prefix_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_sizes, "PREFIXES", (20,))
    monkeypatch.setattr(real_sizes, "NUM_DRAFT_TOKENS", (4,))
    plain, drafted = study_real_sizes((SMALL, SMALL), "cpu", acceptance_length=5)
    assert plain.num_draft_tokens == 0 and plain.draft == 0 < plain.verify < plain.step
    assert drafted.num_draft_tokens == 4 and 0 < drafted.draft < drafted.step


def test_speed_ups_are_those_of_whole_steps() -> None:
    times = [StepTimes(512, 0, 0, 0.02, 0.02), StepTimes(512, 8, 0.01, 0.02, 0.03)]
    plain, drafted = step_table((SMALL, SMALL), times).cells
    assert plain == ("512", "-", "0.0", "20.0", "20.0", "1.00x", "-", "-")
    assert drafted == ("512", "8", "10.0", "20.0", "30.0", "2.00x", "3.33x", "4.66x")

"""The study of acceptance on approximate prefixes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.staleness import Replayed, Variant, acceptance, replay_all, variants
from diffuspec.bench.record import RecordedText
from diffuspec.core.interfaces import TargetInfo
from tests.support.diffusion_families import save_family
from tests.support.models import NUM_KNOWN_IDS

INFO = TargetInfo(NUM_KNOWN_IDS, 128, max_sequences=1, eos_token_ids=())


@pytest.mark.parametrize("variant", variants(window=16, rows=8), ids=lambda one: one.name)
async def test_each_variant_drafts_whole_answers(tmp_path: Path, variant: Variant) -> None:
    path = save_family(tmp_path / "drafter", "dream")
    rng = np.random.default_rng(0)
    prompt, answer = (rng.integers(3, NUM_KNOWN_IDS, n).astype(np.int32) for n in (60, 12))
    found = await replay_all(path, INFO, [RecordedText("qa", prompt, answer)], variant)
    assert found[0].num_tokens == 12 and 1 <= found[0].num_steps <= 12


def test_acceptance_is_over_all_steps() -> None:
    assert acceptance([Replayed(10, 2), Replayed(2, 2)]) == "3.00"
    assert acceptance([]) == "-"

"""Random checkpoints, saved as a user would find them, and runners over them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from diffuspec.models.kernels import levels
from diffuspec.models.loading.load import load_model
from diffuspec.models.runner import ModelRunner
from tests.support.models import (
    FAMILIES,
    MASK_TOKEN_ID,
    edit_json,
    make_drafter_model,
    make_dream,
    make_model,
    save_tokenizer,
    without_rounding,
)

levels.use_wanted_level()  # before test modules ask which products there are


@pytest.fixture(autouse=True, scope="package")
def drafters_do_not_round() -> Iterator[None]:
    with without_rounding():
        yield


@pytest.fixture(scope="session")
def family_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return where a family's random target is, with its tokenizer: made once, not to be edited."""

    @cache
    def path(family: str) -> Path:
        folder = tmp_path_factory.mktemp("family")
        make_model(family).save_pretrained(folder)
        save_tokenizer(folder)
        return folder

    return path


@pytest.fixture
def save_target(family_path: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Save a random target of a family, with its tokenizer, once for a test."""

    @cache
    def save(family: str) -> Path:
        return shutil.copytree(family_path(family), tmp_path / family)

    return save


@pytest.fixture
def save_drafter(tmp_path: Path) -> Callable[[str], Path]:
    """Save a random diffusion LM: `block_causal`, `full`, `dream` in Dream's own layout, `llada`.

    LLaDA's rows predict their own token. One of a kind is saved once for a test.
    """

    @cache
    def save(kind: str) -> Path:
        path = tmp_path / kind
        make_drafter_model().save_pretrained(path)
        config = path / "config.json"
        edit_json(config, mask_token_id=MASK_TOKEN_ID)
        if kind == "dream":
            make_dream(config)
        elif kind == "llada":
            edit_json(config, diffusion_attention="full", diffusion_shift=False)
        else:
            edit_json(config, diffusion_attention=kind)
        return path

    return save


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(family: str, family_path: Callable[[str], Path]) -> ModelRunner:
    """A runner of the family for all tests of a file, which fill slots from their beginning."""
    return load_model(
        family_path(family), device="cpu", max_sequences=4, num_scratch_rows=32
    ).runner

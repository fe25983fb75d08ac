"""The registry has a kind of drafter for each section of the configuration, and loads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from diffuspec.core.config import SearchConfig
from diffuspec.core.drafter_config import DiffuSpecConfig, DrafterConfig, PromptLookupConfig
from diffuspec.core.errors import VocabularyError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.drafters import KINDS, Target, load_drafter
from diffuspec.drafters.prompt_lookup import PromptLookupDrafter
from diffuspec.pairs.tiny import DRAFTER

INFO = TargetInfo(vocab_size=50, max_model_len=64, max_sequences=2, eos_token_ids=(0,))


def test_every_section_has_a_kind_and_every_kind_a_section() -> None:
    union, *_ = get_args(DrafterConfig)
    sections = {section.model_fields["kind"].default: section for section in get_args(union)}
    assert sections == {name: kind.config for name, kind in KINDS.items()}


def test_a_kind_with_a_model_says_on_which_device_and_can_be_imported_ahead() -> None:
    for kind in KINDS.values():
        kind.import_ahead()
        assert ("device" in kind.config.model_fields) == kind.has_model


def test_a_drafter_without_a_lattice_is_loaded_without_a_path_search(tmp_path: Path) -> None:
    search = SearchConfig(ngram=tmp_path / "nowhere")
    drafter = load_drafter(PromptLookupConfig(), search, Target(INFO, None))
    assert isinstance(drafter, PromptLookupDrafter)
    drafter.close()


def test_a_drafter_of_another_vocabulary_is_refused() -> None:
    config = DiffuSpecConfig(path=DRAFTER)
    with pytest.raises(VocabularyError):
        load_drafter(config, SearchConfig(), Target(INFO, "of another target"))


def test_the_registry_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, diffuspec.drafters; print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")

"""The page for users of vLLM has every option that has an alias or advice."""

from __future__ import annotations

from pathlib import Path

from diffuspec.core.vllm_words import ALIASES, HINTS

PAGE = (Path(__file__).parents[2] / "docs/from_vllm.md").read_text()


def test_every_alias_and_all_advice_of_the_options_of_vllm_is_in_the_table():
    for word, name in ALIASES.items():
        assert f"| `{word}` | `{name}`; vLLM's name works, too |" in PAGE
    for word, advice in HINTS.items():
        assert f"| `{word}` | {advice} |" in PAGE

"""SPS: a small causal LM with the target's vocabulary drafts; see models/autoregressive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffuspec.core.drafter_config import AutoregressiveConfig
from diffuspec.core.interfaces import PathScorer
from diffuspec.drafters.kind import DrafterKind, Target

if TYPE_CHECKING:
    from diffuspec.models.autoregressive import AutoregressiveDrafter


def _load(
    config: AutoregressiveConfig, target: Target, path_scorer: PathScorer | None
) -> AutoregressiveDrafter:
    from diffuspec.models.autoregressive import AutoregressiveDrafter  # imports torch
    from diffuspec.text.tokenizer import check_shared_vocabulary  # imports transformers

    if target.vocabulary is not None:
        check_shared_vocabulary(config.path, target.vocabulary, target.info.vocab_size)
    return AutoregressiveDrafter.load(config, target.info)


def _import_ahead() -> None:
    import diffuspec.models.autoregressive  # noqa: F401


KIND = DrafterKind(
    AutoregressiveConfig,
    _load,
    needs_path_scorer=False,
    has_model=True,
    import_ahead=_import_ahead,
)

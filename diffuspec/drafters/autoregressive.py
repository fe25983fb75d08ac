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


KIND = DrafterKind(AutoregressiveConfig, _load, model_module="diffuspec.models.autoregressive")

"""The path search used by drafters that make lattices."""

from __future__ import annotations

from pathlib import Path

from diffuspec.algorithm.cache_model import CacheModel
from diffuspec.algorithm.retrieval import Retrieval
from diffuspec.algorithm.search import PathSearch
from diffuspec.core.config import SearchConfig
from diffuspec.core.interfaces import CausalProxy, TargetInfo
from diffuspec.text.answer_matchers import AnswerMatchers
from diffuspec.text.grammars import grammars_of


def make_path_search(
    config: SearchConfig, info: TargetInfo, target_path: Path | None
) -> PathSearch:
    """Load the proxy that a configuration names. Raises NgramError, ModelLoadError.

    target_path: the target's directory; its tokenizer is needed for structured output.
    """
    proxy: CausalProxy | None = None
    if config.ngram is not None:
        from diffuspec.models.ngram.ngram_proxy import NgramProxy

        proxy = NgramProxy(config.ngram, vocab_size=info.vocab_size)
    elif config.causal_lm is not None:
        from diffuspec.models.causal_proxy import CausalLmProxy  # imports torch

        proxy = CausalLmProxy.load(
            config.causal_lm, vocab_size=info.vocab_size, beam_width=config.beam_width
        )
    matchers = None if target_path is None else AnswerMatchers(grammars_of(target_path, info))
    retrieval = Retrieval(
        info.max_sequences, info.eos_token_ids, predicted_only=not config.retrieval
    )
    cache = None
    if proxy is not None and config.cache_weight:
        cache = CacheModel(proxy, config.cache_weight, info.max_sequences)
    return PathSearch(
        proxy,
        beam_width=config.beam_width,
        eos_token_ids=info.eos_token_ids,
        guides=matchers,
        retrieval=retrieval,
        cache=cache,
    )

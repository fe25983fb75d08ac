"""The path search of drafters that make lattices."""

from __future__ import annotations

from diffuspec.algorithm.search import PathSearch
from diffuspec.core.config import SearchConfig
from diffuspec.core.interfaces import CausalProxy, TargetInfo


def make_path_search(config: SearchConfig, info: TargetInfo) -> PathSearch:
    """Load the proxy that a configuration names. Raises NgramError, ModelLoadError."""
    proxy: CausalProxy | None = None
    if config.ngram is not None:
        from diffuspec.models.ngram.kenlm_proxy import KenlmProxy

        proxy = KenlmProxy(config.ngram, vocab_size=info.vocab_size)
    elif config.causal_lm is not None:
        from diffuspec.models.causal_proxy import CausalLmProxy  # torch: not for an n-gram model

        proxy = CausalLmProxy.load(
            config.causal_lm, vocab_size=info.vocab_size, beam_width=config.beam_width
        )
    return PathSearch(proxy, beam_width=config.beam_width, eos_token_ids=info.eos_token_ids)

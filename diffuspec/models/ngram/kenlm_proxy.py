"""The causal proxy of CPS: an n-gram model over token ids, scored by KenLM.

KenLM uses log10 and words. Here its words are decimal token ids, and its probabilities are
converted to natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from diffuspec.core.errors import MissingDependencyError, NgramError
from diffuspec.core.interfaces import ProxyState
from diffuspec.models.ngram.kenlm_file import read_num_ngrams

_LN_10 = math.log(10)


class KenlmProxy:
    """Scores token ids with an n-gram model: a `CausalProxy` over an ARPA or KenLM binary file.

    States are KenLM's: hashable, equal if they score every continuation equally, and not picklable.
    Ids that the model does not know have the probability of <unk>. A proxy does not change after
    loading, so threads may share it.
    """

    def __init__(self, path: str | Path, *, vocab_size: int) -> None:
        """Load a model whose words are token ids below vocab_size.

        Raises NgramError, which names the file, if it cannot be read, is damaged, or has other
        words. Raises MissingDependencyError without the package kenlm.
        """
        kenlm = _import_kenlm()
        num_ngrams = read_num_ngrams(path)
        self.order = len(num_ngrams)
        model = _load(kenlm, path)
        # A dict, because a list would take -1 for the last word.
        self._words = {token_id: str(token_id) for token_id in range(vocab_size)}
        _check_vocabulary(model, path, num_ngrams[0], self._words)
        self._base_score = model.BaseScore
        self._new_state = kenlm.State
        self._null_state = kenlm.State()
        model.NullContextWrite(self._null_state)

    @property
    def max_context_tokens(self) -> int:
        return self.order - 1

    def begin(self, context: Sequence[int], salt: str | None = None) -> ProxyState:
        """Return the state after the last order - 1 tokens of a context.

        The context is from the middle of a text, so it does not start with <s>.
        """
        state = self._null_state
        for word in self._spell(context[-(self.order - 1) :]):
            next_state = self._new_state()
            self._base_score(state, word, next_state)
            state = next_state
        return state

    def expand(
        self, states: Sequence[ProxyState], candidates: Sequence[int]
    ) -> tuple[list[list[float]], list[list[ProxyState]]]:
        """Score every candidate after every state; see `CausalProxy.expand`.

        Raises NgramError for a candidate outside the vocabulary. This is the inner loop of the
        search: a few hundred candidates per draft, about 0.3 microseconds each.
        """
        words = self._spell(candidates)
        base_score, new_state, ln_10 = self._base_score, self._new_state, _LN_10
        logprobs: list[list[float]] = []
        next_states: list[list[ProxyState]] = []
        for state in states:
            afters = [new_state() for _ in words]
            # base_score writes the next state into its third argument.
            logprobs.append([ln_10 * lg for lg in map(base_score, repeat(state), words, afters)])
            next_states.append(afters)
        return logprobs, next_states

    def _spell(self, token_ids: Sequence[int]) -> list[str]:
        words = self._words
        try:
            return [words[token_id] for token_id in token_ids]
        except KeyError as error:
            raise NgramError(
                f"token id {error.args[0]} is outside the vocabulary of {len(words)} ids"
            ) from None


def _import_kenlm() -> Any:
    try:
        import kenlm
    except ImportError as error:
        raise MissingDependencyError(
            "an n-gram model is configured, which needs the package kenlm: "
            "`pip install 'diffuspec[kenlm]'` (with a C++ compiler; with Python 3.13 see "
            ".ci/install_kenlm). Drafting works without one, too: `--ngram none`, `ngram: null`"
        ) from error
    return kenlm


def _load(kenlm: Any, path: str | Path) -> Any:
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return kenlm.Model(str(path), config)
    except UnicodeDecodeError as error:  # KenLM's message quotes bytes of the file
        raise NgramError(f"{path} cannot be loaded by KenLM: it is damaged") from error
    except (OSError, RuntimeError, MemoryError) as error:
        reason = str(error).rpartition(" threw ")[2].rstrip(")")  # drops KenLM's source location
        raise NgramError(f"{path} cannot be loaded by KenLM: {reason}") from error


def _check_vocabulary(model: Any, path: str | Path, num_words: int, words: dict[int, str]) -> None:
    """Raise NgramError unless all words are token ids; looks up every id to count them."""
    # 1 for <unk>, which is never `in` a model
    num_special = 1 + ("<s>" in model) + ("</s>" in model)
    num_known = sum(map(model.__contains__, words.values()))
    if num_known == 0 or num_known < num_words - num_special:
        raise NgramError(
            f"{path} is not a model of these token ids: of its {num_words - num_special} words"
            f" {num_known} are ids from 0 to {len(words) - 1}. Was it built from text, or with"
            " another tokenizer?"
        )

"""Checks the files that a configuration names, before any weights are read."""

from __future__ import annotations

import filecmp
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DrafterConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.faults import Faults
from diffuspec.drafters import kind_of
from diffuspec.text.chat_template import read_template
from diffuspec.text.directory import check_directory, read_json

if TYPE_CHECKING:
    from diffuspec.models.loading.checkpoint import Checkpoint

_TOKENIZER = "tokenizer.json"


def check_files(config: EngineConfig) -> None:
    """Check models, vocabularies, n-gram files and texts. Raises one error with all faults.

    Each fault has the key of the file. An error of a single fault has the fault's own type.
    """
    faults = Faults()
    note_faults(config, faults)
    faults.raise_all()


def check_exist(config: EngineConfig) -> None:
    """Check that all files exist, as `check_files` does first, without slow imports."""
    faults = Faults()
    _note_missing(config, faults)
    faults.raise_all()


def note_faults(config: EngineConfig, faults: Faults) -> None:
    """Note all faults of `check_files`; contents are read only if no file is missing.

    Reading them imports torch and transformers, which takes seconds.
    """
    if _note_missing(config, faults):
        return
    path = config.target.path
    target = faults.check("target.path", lambda: _inspect(path))
    if (template := config.target.chat_template) is not None:
        faults.check("target.chat_template", lambda: read_template(template))
    vocabulary = None
    if target is not None:
        vocabulary = faults.check("target.path", lambda: _Vocabulary(path, target))
    for name, section in config.named_drafters.items():
        _check_drafter(config.section_of(name), section, vocabulary, faults)
    if _has_search(config):
        _check_search(config, vocabulary, faults)


def _note_missing(config: EngineConfig, faults: Faults) -> bool:
    """Note the files that do not exist. Return whether there are any."""
    models = {"target.path": config.target.path}
    others: dict[str, Path | None] = {"target.chat_template": config.target.chat_template}
    for name, section in config.named_drafters.items():
        key = config.section_of(name)
        if path := getattr(section, "path", None):
            models[f"{key}.path"] = path
        others[f"{key}.texts"] = getattr(section, "texts", None)
    if _has_search(config):
        others["search.ngram"] = config.search.ngram
        if config.search.causal_lm is not None:
            models["search.causal_lm"] = config.search.causal_lm
    missing = {key: path for key, path in models.items() if not path.exists()}
    for key, path in missing.items():
        faults.check(key, functools.partial(check_directory, path))
    absent = {key: path for key, path in others.items() if path is not None and not path.exists()}
    for key, path in absent.items():
        what = "n-gram model" if key == "search.ngram" else "the file"
        faults.check(key, functools.partial(_refuse, f"{what} {path} does not exist"))
    return bool(missing or absent)


def _has_search(config: EngineConfig) -> bool:
    return any(kind_of(section).needs_path_scorer for section in config.named_drafters.values())


class _Vocabulary:
    """The token ids of the target."""

    def __init__(self, path: Path, checkpoint: Checkpoint) -> None:
        from diffuspec.text.tokenizer import load_tokenizer  # imports transformers

        self.path = path
        self._tokenizer = load_tokenizer(path)
        num_ids = max(self._tokenizer.get_vocab().values()) + 1
        num_rows = checkpoint.config.get("vocab_size")
        self.num_ids = min(num_ids, num_rows) if isinstance(num_rows, int) else None

    @functools.cached_property
    def digest(self) -> str:
        from diffuspec.text.tokenizer import vocabulary_digest

        assert self.num_ids is not None
        return vocabulary_digest(self._tokenizer, self.num_ids)

    def check_shared(self, path: Path) -> None:
        """Raise VocabularyError if a drafter's ids are other tokens; equal files need no look."""
        from diffuspec.text.tokenizer import check_shared_vocabulary

        own, other = self.path / _TOKENIZER, path / _TOKENIZER
        if self.num_ids is None:
            return
        if not (own.is_file() and other.is_file() and filecmp.cmp(own, other)):
            check_shared_vocabulary(path, self.digest, self.num_ids)


def _inspect(path: Path) -> Checkpoint:
    from diffuspec.models.loading.checkpoint import inspect_checkpoint

    return inspect_checkpoint(path)


def _check_drafter(
    key: str, section: DrafterConfig, vocabulary: _Vocabulary | None, faults: Faults
) -> None:
    path: Path | None = getattr(section, "path", None)
    if path is None:
        return
    has_tokenizer = kind_of(section).needs_tokens_alone  # heads share the target's
    work: Any = _inspect if has_tokenizer else _check_head
    is_there = faults.check(f"{key}.path", lambda: work(path))
    if is_there is not None and has_tokenizer and vocabulary is not None:
        faults.check(f"{key}.path", lambda: vocabulary.check_shared(path))


def _check_head(path: Path) -> dict[str, Any]:
    check_directory(path)
    return read_json(path, "config.json")


def _check_search(config: EngineConfig, vocabulary: _Vocabulary | None, faults: Faults) -> None:
    ngram, causal_lm = config.search.ngram, config.search.causal_lm
    if ngram is not None:
        faults.check("search.ngram", lambda: _check_ngram(ngram, vocabulary))
    if causal_lm is not None:
        faults.check("search.causal_lm", lambda: _inspect(causal_lm))


def _check_ngram(path: Path, vocabulary: _Vocabulary | None) -> None:
    from diffuspec.models.ngram.kenlm_file import read_header
    from diffuspec.models.ngram.ngram_proxy import NgramProxy

    if vocabulary is None or vocabulary.num_ids is None:
        read_header(path)
    else:
        NgramProxy(path, vocab_size=vocabulary.num_ids)


def _refuse(message: str) -> None:
    raise ConfigError(message)

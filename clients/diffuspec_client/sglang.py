"""Trees for SGLang: `--speculative-algorithm DIFFUSPEC`, with the address in the environment.

A plug-in for SGLang (entry point `sglang.srt.plugins`). Its worker is SGLang's n-gram worker, which
verifies a tree of a fixed size for each request; where the draft server has a tree for a request,
that tree replaces the n-gram tree. Nothing else in the worker is changed: when the server fails or
is late, SGLang's own n-grams are used.

It uses internals of SGLang, listed in HOOKS and checked first. If one is missing, the algorithm is
not registered and a warning is logged.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffuspec_client.client import CONNECT_SECONDS, MAX_MODEL_LEN, Draft, DraftClient, Row
from diffuspec_client.hooks import has_hook
from diffuspec_client.problems import Problems
from diffuspec_client.settings import Settings
from diffuspec_client.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

NAME = "DIFFUSPEC"
_SPECULATIVE = "sglang.srt.speculative"
# The attributes used, by module.
HOOKS: tuple[tuple[str, str], ...] = (
    (f"{_SPECULATIVE}.spec_info", "SpeculativeAlgorithm.NGRAM"),
    (f"{_SPECULATIVE}.spec_info", "SpeculativeAlgorithm.register"),
    (f"{_SPECULATIVE}.spec_info", "SpeculativeAlgorithm.create_future_map"),
    (f"{_SPECULATIVE}.spec_registry", "CustomSpecAlgo.create_worker"),
)
# The worker's module needs GPU libraries, and so is loaded only when a worker is created.
WORKER_HOOKS: tuple[tuple[str, str], ...] = (
    (f"{_SPECULATIVE}.ngram_worker", "NGRAMWorker._prepare_draft_tokens"),
    (f"{_SPECULATIVE}.ngram_worker", "NGRAMWorker.clear_cache_pool"),
)
_OUR_OWN = {"from_string", "register", "create_worker", "get_platform_worker_cls", "is_some"}
_MAX_REQUESTS = 4096


def register() -> None:
    """Register the algorithm with SGLang. This is the entry point, and it never raises."""
    try:
        missing = missing_hooks(HOOKS)
        if missing:
            _warn(f"this SGLang lacks {', '.join(missing)}")
            return
        info = importlib.import_module(f"{_SPECULATIVE}.spec_info")
        registry = importlib.import_module(f"{_SPECULATIVE}.spec_registry")
        if registry.get_spec(NAME) is None:
            kind = algorithm_class(info.SpeculativeAlgorithm, registry.CustomSpecAlgo)
            decorate = info.SpeculativeAlgorithm.register(
                NAME, supports_overlap=True, spec_class=kind
            )
            decorate(lambda _: worker_class())
    except Exception as error:
        _warn(repr(error))


def missing_hooks(
    hooks: Sequence[tuple[str, str]], load: Callable[[str], Any] = importlib.import_module
) -> list[str]:
    """Return the attributes that this version of SGLang lacks."""
    return [f"{module}.{name}" for module, name in hooks if not has_hook(module, name, load=load)]


def algorithm_class(algorithms: Any, base: type) -> type:
    """Return an algorithm class that behaves as SGLang's n-gram algorithm does.

    The base class lacks methods that the scheduler calls, such as create_future_map and need_topk,
    and registration does not check for them. So every method is taken from the built-in algorithms.
    """
    ngram = algorithms.NGRAM

    def asking(name: str) -> Callable[..., Any]:
        return lambda self, *given, **named: getattr(ngram, name)(*given, **named)

    methods: dict[str, Any] = {
        name: asking(name)
        for name, value in vars(algorithms).items()
        if callable(value) and not name.startswith("_") and name not in _OUR_OWN
    }
    methods["get_platform_worker_cls"] = lambda self: None
    return type("DiffuspecAlgorithm", (base,), methods)


def worker_class() -> type:
    """Return SGLang's n-gram worker with our trees, or unchanged if hooks are missing."""
    module = importlib.import_module(f"{_SPECULATIVE}.ngram_worker")
    missing = missing_hooks(WORKER_HOOKS)
    if missing:
        _warn(f"this SGLang lacks {', '.join(missing)}")
        worker: type = module.NGRAMWorker
        return worker
    return type("DiffuspecWorker", (TreeWorker, module.NGRAMWorker), {})


class TreeWorker:
    """Methods that override those of SGLang's n-gram worker."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._trees: Trees | None = None
        try:
            self._trees = self._connect()
        except Exception as error:
            _warn(repr(error))

    def _connect(self) -> Trees | None:
        worker: Any = self
        if int(getattr(worker.server_args, "tp_size", 1)) > 1:
            # Each rank would draft for itself, and a tree may arrive in time on only one of them.
            _warn("ranks of tensor parallelism have to draft alike, and trees come at any time")
            return None
        client = DraftClient(
            Settings.read({}),
            vocabulary=Vocabulary(worker._target_worker.tokenizer.get_vocab()),
            max_model_len=MAX_MODEL_LEN,
            max_requests=_MAX_REQUESTS,
            max_draft_tokens=int(worker.draft_token_num) - 1,
            is_tree=True,
            engine="sglang",
        )
        client.wait_until_connected(CONNECT_SECONDS)
        return Trees(client, int(worker.draft_token_num))

    def _prepare_draft_tokens(self, batch: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return flat tokens, [requests x nodes], and masks, [requests x nodes x nodes]."""
        worker: Any = super()
        tokens, mask = worker._prepare_draft_tokens(batch)
        return (tokens, mask) if self._trees is None else self._trees.put(self, batch, tokens, mask)

    def clear_cache_pool(self) -> None:
        worker: Any = super()
        worker.clear_cache_pool()
        if self._trees is not None:
            self._trees.forget()


class Trees:
    """Replaces SGLang's trees by those of a server."""

    def __init__(self, client: DraftClient, num_nodes: int) -> None:
        """num_nodes: nodes of each tree, including its root, the last token."""
        self._client = client
        self._num_nodes = num_nodes
        self._names: set[str] = set()  # requests in the last batch
        self._ended: list[str] = []
        self._problems = Problems(logger)

    def forget(self) -> None:
        """Called when the cache is cleared: no request continues."""
        self._ended += self._names
        self._names = set()

    def put(
        self, worker: Any, batch: Any, tokens: NDArray[Any], mask: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return tokens and masks, with our trees where there are any. Never raises."""
        try:
            return self._put(worker, batch, tokens, mask)
        except Exception:
            message = "n-grams alone draft in this step"
            self._problems.show(message, logging.ERROR, has_trace=True)
            return tokens, mask

    def _put(
        self, worker: Any, batch: Any, tokens: NDArray[Any], mask: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        number, size = len(batch.reqs), self._num_nodes
        rows = [self._row(worker, place, one) for place, one in enumerate(batch.reqs)]
        names = {row.request_id for row in rows}
        ended = [*self._ended, *sorted(self._names - names)]
        self._names, self._ended = names, []
        drafts = self._client.step(rows, ended)
        all_tokens = np.array(tokens).reshape(number, size)
        all_masks = np.array(mask).reshape(number, size, size)
        for place, draft in enumerate(drafts):
            if draft.token_ids:
                last = int(rows[place].token_ids[-1])
                all_tokens[place], all_masks[place] = tree_of(draft, last, size)
        return all_tokens.reshape(tokens.shape), all_masks.reshape(mask.shape)

    def _row(self, worker: Any, place: int, request: Any) -> Row:
        """Return a request with the tokens that the scheduler has not recorded yet."""
        accepted = worker.prev_accept_lens[place]
        start = place * self._num_nodes
        fresh = worker.prev_token_ids[start : start + accepted] if accepted else []
        prompt = np.asarray(request.origin_input_ids_unpadded, np.int32)
        parts = [prompt, np.asarray(request.output_ids, np.int32), np.asarray(fresh, np.int32)]
        return Row(str(request.rid), np.concatenate(parts), len(prompt))


def tree_of(draft: Draft, last: int, num_nodes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the tokens of a tree below the last token, and the ancestors of each node as a mask.

    If the draft has too few nodes, a chain below its last node fills the tree. Two nodes with the
    same parent must not have the same token: in sampling, that token would be chosen too often.

    Raises ValueError for a draft with two such nodes.
    """
    if len({*zip(draft.parents, draft.token_ids, strict=True)}) < len(draft.token_ids):
        raise ValueError("a tree has two nodes with the same parent and the same token")
    number = 1 + len(draft.token_ids)
    tokens = np.full(num_nodes, draft.token_ids[-1], np.int64)
    tokens[:number] = [last, *draft.token_ids]
    parents = [0, *[parent + 1 for parent in draft.parents], *range(number - 1, num_nodes - 1)]
    mask = np.eye(num_nodes, dtype=bool)
    for node in range(1, num_nodes):
        mask[node] |= mask[parents[node]]
    return tokens, mask


def _warn(reason: str) -> None:
    logger.warning("diffuspec: SGLang goes on without our drafts: %s", reason)

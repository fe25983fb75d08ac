"""The target: verifies draft trees with a causal LM and its own cache."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from diffuspec.algorithm import draft_tree
from diffuspec.algorithm.acceptance import Acceptance
from diffuspec.algorithm.sampling import is_plain_argmax, likeliest, read_tokens, target_tokens
from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import (
    InvalidRequestError,
    ModelLoadError,
    VerifierError,
    WorkerError,
)
from diffuspec.core.interfaces import Observer, TargetInfo
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.types import Verdict, VerifyRequest, num_shared_tokens
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.models.loading.load import LoadedModel, load_model
from diffuspec.models.pages.cache import MANY_TOKENS
from diffuspec.models.pages.pool import OutOfPagesError
from diffuspec.models.pages.store import describe_size
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner
from diffuspec.models.validation import check_batch
from diffuspec.models.verified_step import VerifiedStep
from diffuspec.models.verify_plan import ChosenNodes, VerifyPlan
from diffuspec.models.worker import Worker
from diffuspec.text.answer_masks import AnswerMasks
from diffuspec.text.answer_matchers import Admitted, AnswerMatchers
from diffuspec.text.endings import read_eos_token_ids
from diffuspec.text.grammars import grammars_of
from diffuspec.text.tokenizer import check_tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

MAX_PREFILL_ROWS = 2048  # limits activations: longer prefixes are run in several forwards


class CausalTarget:
    """A Verifier over a transformers causal LM.

    Forwards run in a worker thread, so that awaiting them does not block the event loop. If the
    runner does not support trees, only a tree's best path is verified.
    """

    def __init__(
        self,
        runner: ModelRunner,
        info: TargetInfo,
        masks: AnswerMasks | None = None,
        num_ranks: int = 1,
    ) -> None:
        """Without masks, requests with structured output are refused."""
        self._num_ranks = num_ranks
        self.runner = runner
        self._masks = masks
        self._info = info
        self._worker = Worker("target", is_inline=info.max_sequences == 1)
        self._observers: tuple[Observer, ...] = ()

    @classmethod
    def load(cls, config: TargetConfig, num_ranks: int = 1) -> Self:
        """Load the target, or one rank's share of it. Raises ModelLoadError."""
        tokenizer = load_tokenizer(config.path, config.chat_template)
        eos_token_ids = read_eos_token_ids(config.path, tokenizer)
        loaded = load_model(
            config.path,
            device=config.device,
            dtype=config.dtype,
            max_sequences=config.max_sequences,
            cache_memory=config.cache_memory,
            max_len=config.max_model_len,
            num_scratch_rows=config.max_tree_nodes,
            is_exact=config.exact,
            num_ranks=num_ranks,
            is_target=True,
            quantize_activations=config.quantize_activations,
        )
        size = describe_size(loaded.runner.cache.num_pages)
        logger.info("%s: the cache has room for %s", config.path, size)
        info = TargetInfo(
            vocab_size=check_tokenizer(config.path, tokenizer, loaded.runner.vocab_size),
            max_model_len=_longest(config, loaded),
            max_sequences=config.max_sequences,
            eos_token_ids=eos_token_ids,
            max_tree_nodes=config.max_tree_nodes,
            num_pages=loaded.runner.cache.num_pages,
            row_multiple=loaded.runner.row_multiple,
        )
        matchers = AnswerMatchers(grammars_of(config.path, info))
        masks = AnswerMasks(matchers, is_inline=info.max_sequences == 1)
        return cls(loaded.runner, info, masks, num_ranks)

    @property
    def info(self) -> TargetInfo:
        return self._info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """Verify a batch. Raises InvalidRequestError before any work, VerifierError after."""
        self.check(requests)
        if not requests:
            return []
        admitted = await self.admit(requests)
        return await self._worker.run(self.verify_here, list(requests), admitted)

    async def admit(self, requests: Sequence[VerifyRequest]) -> list[Admitted | None]:
        """Return the tokens that grammars admit in the trees; see `AnswerMasks.admit`."""
        if self._masks is not None:
            return await self._masks.admit(requests)
        if any(request.sampling.structured_output for request in requests):
            raise InvalidRequestError("structured_output needs a target with its tokenizer")
        return [None] * len(requests)

    async def release(self, request_id: str) -> None:
        # Not awaited: it runs before the next verification, which is soon enough.
        self._worker.post(self.release_here, request_id)

    def release_here(self, request_id: str) -> None:
        """Free what is cached for a request, in the caller's thread."""
        self.runner.cache.release(request_id)
        if self._masks is not None:
            self._masks.release(request_id)

    def add_observer(self, observer: Observer) -> None:
        self._observers = (*self._observers, observer)

    def remove_observer(self, observer: Observer) -> None:
        self._observers = tuple(one for one in self._observers if one is not observer)

    @property
    def model(self) -> Any:
        return self.runner.model

    @property
    def num_ranks(self) -> int:
        return self._num_ranks

    def close(self) -> None:
        """Stop the threads after their current calls."""
        self._worker.close()
        if self._masks is not None:
            self._masks.close()

    def check(self, requests: Sequence[VerifyRequest]) -> None:
        """Raise InvalidRequestError for a bad request, VerifierError for too many."""
        check_batch(requests, self._info)

    @torch.inference_mode()
    def verify_here(
        self, requests: Sequence[VerifyRequest], admitted: Sequence[Admitted | None]
    ) -> list[Verdict]:
        """Verify checked requests, with what `admit` returned, in the caller's thread.

        Raises VerifierError.
        """
        started = time.monotonic()
        observers = [observer for observer in self._observers if observer.is_active]
        try:
            step = self._take_step(requests, admitted, _wanted_layers(requests, observers))
            verdicts: Mapping[str, Verdict] = {}
            if step is not None:
                step.show_to(observers)
                verdicts = step.verdicts(started)
        except WorkerError as error:
            raise VerifierError(str(error)) from error
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise VerifierError(
                f"the target's device is out of memory; a smaller cache_memory leaves more: {error}"
            ) from error
        except Exception as error:  # torch may raise anything
            raise VerifierError(f"the target's forward pass failed: {error}") from error
        use = self.runner.cache.use
        return [
            replace(verdicts.get(request.request_id) or self._held(request), pages=use)
            for request in requests
        ]

    def _held(self, request: VerifyRequest) -> Verdict:
        num_unread = len(request.prefix) - self.runner.cache.num_cached(request.request_id)
        return Verdict((0,), (), is_held=True, num_unread_tokens=num_unread)

    def _take_step(
        self,
        requests: Sequence[VerifyRequest],
        admitted: Sequence[Admitted | None],
        hidden_layers: Sequence[int],
    ) -> VerifiedStep | None:
        """Verify all requests that are not held, and keep their rows; None if all are held."""
        plans = self._plan(requests, admitted, hidden_layers)
        if not plans:
            return None
        hidden_states = HiddenStates(hidden_layers) if hidden_layers else None
        logits = self._forward(plans, hidden_states)
        token_ids = self._target_tokens(plans, logits)
        acceptances = [plan.acceptance(token_ids[plan.logit_rows]) for plan in plans]
        for plan, acceptance in zip(plans, acceptances, strict=True):
            self._commit(plan, acceptance)
        return VerifiedStep(plans, token_ids, acceptances, logits, hidden_states)

    def _plan(
        self,
        requests: Sequence[VerifyRequest],
        admitted: Sequence[Admitted | None],
        hidden_layers: Sequence[int],
    ) -> list[VerifyPlan]:
        """Return a plan for each request except held ones, and prefill long prefixes.

        A request that finds no free page for its draft goes without, and one that finds none for
        its prefix is held: the caller makes room by releasing requests.
        """
        self.runner.cache.begin_step()
        plans: list[VerifyPlan] = []
        reading: list[VerifyPlan] = []  # plans with much to prefill
        for asked, found in zip(requests, admitted, strict=True):
            self._read_shared(reading, asked)
            table = self._acquire(asked)
            request = asked.up_to_limit(table.length)
            if request.sampling.structured_output is None:
                found = None
            elif found is None:
                continue
            chosen = self._choose_nodes(request, found)
            if not self._reserve(table, chosen):
                chosen = chosen.without_draft()
                if not self._reserve(table, chosen):
                    continue
            request, nodes, masks = chosen
            fed = HiddenStates(hidden_layers) if hidden_layers else None
            cached, first_logits = table.length, plans[-1].logit_rows.stop if plans else 0
            start = self.runner.extend(table, request.prefix, cached, MAX_PREFILL_ROWS, fed)
            plans.append(
                VerifyPlan(asked, request, table, cached, start, first_logits, nodes, masks, fed)
            )
            if plans[-1].num_tail > MANY_TOKENS:
                reading.append(plans[-1])
        return plans

    def _read_shared(self, reading: Sequence[VerifyPlan], request: VerifyRequest) -> None:
        """Prefill the beginning that a request's prefix shares with an earlier one to be read.

        The request then finds it in the cache, so a prompt with several choices, or the common
        beginning of simultaneous prompts, is read only once.
        """
        if not reading or request.states_wanted is not None:
            return
        salt = request.sampling.cache_salt
        shared = [
            num_shared_tokens(other.request.prefix[:-1], request.prefix[:-1])
            if other.asked.sampling.cache_salt == salt
            else 0
            for other in reading
        ]
        end = max(shared)
        plan = reading[shared.index(end)]
        if end - plan.start > MANY_TOKENS:
            token_ids = request.prefix[plan.start : end]
            plan.start = self.runner.feed(plan.table, token_ids, plan.start, plan.hidden_states)

    def _reserve(self, table: PageTable, chosen: ChosenNodes) -> bool:
        """Return whether there are pages for the prefix and the chosen nodes of a request."""
        end = len(chosen.request.prefix) + len(chosen.nodes)
        try:
            self.runner.reserve(table, end)
        except OutOfPagesError:
            return False
        return True

    def _acquire(self, request: VerifyRequest) -> PageTable:
        """Return a request's table; its length is the number of usable tokens cached."""
        most, wanted = len(request.prefix) - 1, request.states_wanted
        if wanted is not None:
            most = min(most, wanted.first)
        salt = request.sampling.cache_salt
        return self.runner.cache.acquire(request.request_id, request.prefix, most, salt)

    def _choose_nodes(self, request: VerifyRequest, admitted: Admitted | None) -> ChosenNodes:
        """Return a request with only the nodes to verify, those nodes, and their rows' masks."""
        nodes: Sequence[int] = range(request.tree.num_nodes)
        masks = None
        if admitted is not None:
            nodes, masks = admitted.nodes, admitted.masks
            request = replace(request, tree=draft_tree.prune(request.tree, nodes))
        if not self.runner.takes_trees:
            path = draft_tree.best_path(request.tree)
            nodes = [nodes[place] for place in path]
            masks = masks[[0, *(1 + place for place in path)]] if masks is not None else None
            request = replace(request, tree=draft_tree.prune(request.tree, path))
        return ChosenNodes(request, nodes, masks)

    def _forward(
        self, plans: Sequence[VerifyPlan], hidden_states: HiddenStates | None
    ) -> torch.Tensor:
        """Return float32 logits of every root and node, [R, V]; -inf for ids without a token."""
        logits = self.runner.forward([plan.segment() for plan in plans], hidden_states)
        logits[:, self._info.vocab_size :].fill_(-torch.inf)
        return logits

    def _target_tokens(self, plans: Sequence[VerifyPlan], logits: torch.Tensor) -> list[int]:
        """Return the target's token at every root and node, [R].

        Raises VerifierError if a row's largest logit is NaN or +inf.
        """
        requests = [plan.request for plan in plans]
        if is_plain_argmax(requests):
            token_ids, largest = likeliest(logits)
        else:
            masks = [plan.masks for plan in plans]
            drawn = target_tokens(logits, requests, self._info.eos_token_ids, masks)
            token_ids, largest = read_tokens(drawn, logits.amax(dim=-1))
        self._check_finite(plans, largest)
        return token_ids

    def _check_finite(self, plans: Sequence[VerifyPlan], largest: Sequence[float]) -> None:
        if all(map(math.isfinite, largest)):
            return
        bad = []
        for plan in plans:
            if not all(map(math.isfinite, largest[plan.logit_rows])):
                bad.append(plan.request.request_id)
                self.runner.cache.clear(plan.request.request_id)
        raise VerifierError(f"the target's logits are not finite for requests {', '.join(bad)}")

    def _commit(self, plan: VerifyPlan, acceptance: Acceptance) -> None:
        num_tail = plan.num_tail
        token_ids = plan.request.prefix[plan.start :].tolist()
        token_ids += acceptance.token_ids[:-1]
        rows = [num_tail + node for node in acceptance.accepted_nodes]
        self.runner.cache.commit(plan.table, token_ids, num_tail, rows)


def _longest(config: TargetConfig, loaded: LoadedModel) -> int:
    """Return the length of the longest request that the model and its cache take."""
    longest = config.max_model_len or loaded.max_positions
    room = loaded.runner.cache.num_pages * PAGE_SIZE - 2 * config.max_tree_nodes
    if room < 2:
        raise ModelLoadError(
            f"cache_memory {config.cache_memory} has room for {room} tokens after max_tree_nodes"
        )
    if room < longest:
        logger.warning("requests have at most %d tokens: cache_memory has no room for more", room)
    return min(longest, room)


def _wanted_layers(
    requests: Sequence[VerifyRequest], observers: Sequence[Observer]
) -> Sequence[int]:
    """Return the layers whose hidden states requests or observers want, ascending."""
    wishes = [request.states_wanted.layers for request in requests if request.states_wanted]
    wishes += [observer.hidden_layers for observer in observers]
    return sorted({layer for wish in wishes for layer in wish})

"""RequestFactory: makes a request of a prompt and its parameters, or refuses it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from diffuspec.control.cost_aware import Economics
from diffuspec.control.draft_length import make_draft_length
from diffuspec.control.drafter_choice import DrafterRates
from diffuspec.coordinator.admission import Admission
from diffuspec.coordinator.auto_drafter import AutoDrafter
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.validation import check_request
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import Verifier
from diffuspec.core.params import AUTO_DRAFTER, SamplingParams, SpeculationParams
from diffuspec.core.types import TokenIds
from diffuspec.text.detokenizer import Detokenizer


class RequestFactory:
    """Gives each request its number, its drafter and its draft length."""

    def __init__(
        self,
        verifier: Verifier,
        pool: DrafterPool,
        admission: Admission,
        config: CoordinatorConfig,
        draft_length: DraftLengthConfig,
        economics: Mapping[str, Economics],
    ) -> None:
        """`economics` are by the drafters' names."""
        self._verifier = verifier
        self._pool = pool
        self._admission = admission
        self._overlaps = config.overlap
        self._draft_length = draft_length
        self._economics = economics
        self._rates = DrafterRates(pool.names)
        self._numbers = itertools.count(1)

    def make(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        detokenizer: Detokenizer | None,
        client_request_id: str | None,
        committed_token_ids: TokenIds,
    ) -> Request:
        """Return a new request. Raises InvalidRequestError, or OverloadedError."""
        info = self._verifier.info
        check_request(prompt_token_ids, sampling, speculation, info, committed_token_ids)
        drafter = self._pool.choose(speculation.drafter)
        is_resumed = len(committed_token_ids) > 0
        self._admission.check_load(info.max_sequences, is_resumed=is_resumed)
        if not self._overlaps:
            speculation = replace(speculation, num_outcomes=0)
        names = self._pool.names if drafter == AUTO_DRAFTER else (drafter,)
        lengths = {
            name: make_draft_length(speculation, self._draft_length, self._economics[name])
            for name in names
        }
        request = Request(
            request_id=f"{client_request_id or 'request'}-{next(self._numbers)}",
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            speculation=speculation,
            draft_length=lengths[names[0]],
            eos_token_ids=info.eos_token_ids,
            detokenizer=detokenizer,
            client_request_id=client_request_id,
            committed_token_ids=committed_token_ids,
            drafter=names[0],
        )
        if drafter == AUTO_DRAFTER:
            request.auto = AutoDrafter(lengths, self._rates)
        return request

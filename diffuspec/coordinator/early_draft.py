"""EarlyDraft: a draft asked for while the target reads the prompt, for the second step."""

from __future__ import annotations

from dataclasses import dataclass

from diffuspec.algorithm.draft_tree import draft_after
from diffuspec.coordinator.validation import check_draft
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, DraftRequest, TokenIds


@dataclass(slots=True)
class EarlyDraft:
    """A draft request made before the first step, and its answer."""

    request: DraftRequest
    is_asked: bool = False  # a drafter works on it, or has answered
    draft: Draft | None = None

    def num_since(self, prefix: TokenIds) -> int:
        """Tokens committed since it was asked for."""
        return len(prefix) - len(self.request.prefix)

    def rest(self, prefix: TokenIds, target: TargetInfo) -> Draft:
        """Return the part of `draft` below the tokens committed since, EMPTY_DRAFT if none.

        Raises InvalidRequestError for a wrong draft.
        """
        assert self.draft is not None
        check_draft(self.draft, self.request.max_nodes, target)
        return draft_after(self.draft, prefix[len(self.request.prefix) :].tolist())

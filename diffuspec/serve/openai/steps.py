"""What one step proposed and took, for clients that show it.

A request with `speculation: {"report_drafts": true}` gets it in every chunk of its stream.
"""

from __future__ import annotations

import math

from diffuspec.core.types import RequestOutput, VerifiedDraft
from diffuspec.serve.openai.speculation_objects import StepReport, StepToken, StepTree
from diffuspec.serve.openai.token_texts import TokenTexts


def describe_step(output: RequestOutput, texts: TokenTexts) -> StepReport:
    """Return the key `speculation` of a chunk.

    tokens: what the step added; the first num_accepted_tokens were drafted, the rest is the
    target's own. tree: what was verified, null without a draft. Seconds are by stage.
    """
    step = output.step
    tokens: list[StepToken] = [
        {"id": token_id, "text": piece}
        for token_id, piece in zip(output.token_ids, output.pieces, strict=True)
    ]
    return {
        "tokens": tokens,
        "num_accepted_tokens": output.num_accepted_tokens,
        "num_draft_tokens": step.num_draft_tokens,
        "tree": None if output.draft is None else _describe_tree(output.draft, texts),
        "seconds": {
            "draft": round(step.draft_seconds, 6),
            "search": round(step.search_seconds, 6),
            "verify": round(step.verify_seconds, 6),
            "transport": round(step.transport_seconds, 6),
            "step": round(step.step_seconds, 6),
        },
        "pre_draft": step.pre_draft,
        "fallback": step.fallback,
    }


def _describe_tree(draft: VerifiedDraft, texts: TokenTexts) -> StepTree:
    """Parent -1 is the last token before the step. Probabilities are those after the parent."""
    return {
        "token_ids": draft.tree.token_ids,
        "texts": [texts.raw(one).decode(errors="replace") for one in draft.tree.token_ids],
        "parents": draft.tree.parents,
        "probabilities": [round(math.exp(min(one, 0.0)), 4) for one in draft.confidences],
        "accepted": draft.accepted_nodes,
    }

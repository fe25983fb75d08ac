"""Messages to an engine: drafts cut to what is worth verifying, and outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffuspec.algorithm.draft_tree import best_path, follow, prune_draft
from diffuspec.core.types import Draft
from diffuspec.draft_server.request import EngineRequest, ReadyDraft, root_of
from diffuspec.v1.draft_service_pb2 import DraftedOutcome, DraftSource, OutcomeTable, RowDraft


def outcome_table(
    step_id: int,
    requests: Iterable[tuple[str, EngineRequest]],
    pushed: set[tuple[EngineRequest, tuple[int, ...]]],
) -> OutcomeTable:
    """Return the pre-drafts that are not in `pushed` yet, and add them to it."""
    table = OutcomeTable(step_id=step_id)
    for request_id, request in requests:
        for made in request.pre_drafts():
            if (request, made.tokens) not in pushed:
                pushed.add((request, made.tokens))
                table.outcomes.append(_outcome_message(request_id, request.sent, made))
    return table


def _outcome_message(request_id: str, sent: Draft, made: ReadyDraft) -> DraftedOutcome:
    path = [made.draft.tree.token_ids[node] for node in best_path(made.draft.tree)]
    *accepted, token_id = made.tokens
    return DraftedOutcome(
        request_id=request_id,
        num_accepted=len(accepted),
        token_id=token_id,
        token_ids=path,
        node=next(reversed(follow(sent.tree, accepted)), -1),
    )


def likeliest(draft: Draft, reach: Sequence[float], number: int) -> tuple[Draft, float]:
    """Return the part of a draft with this many of its likeliest nodes, and its expected tokens."""
    if not number:
        return root_of(draft), 0.0
    if number < len(reach) or 0.0 in reach:
        # Parents come first: no node is likelier to be reached than its parent.
        order = sorted(range(len(reach)), key=reach.__getitem__, reverse=True)[:number]
        order = [node for node in order if reach[node] > 0]
        draft, reach = prune_draft(draft, order), [reach[node] for node in order]
    return draft, sum(reach)


def row_message(draft: Draft, source: DraftSource, is_tree: bool) -> RowDraft:
    tree = draft.tree
    parents = tree.parents if is_tree else ()
    return RowDraft(
        token_ids=tree.token_ids, parents=parents, confidences=draft.confidences, source=source
    )

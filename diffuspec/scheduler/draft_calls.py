"""The draft calls that idle drafters could make now, with their sizes and expected ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffuspec.adl.draft_lengths import Load, with_trial
from diffuspec.scheduler.calls import DraftCall, Lane
from diffuspec.scheduler.plan import Batch, Drafts, Snapshot
from diffuspec.scheduler.request import Request


def load_of(s: Snapshot, name: str, requests: Sequence[Request]) -> Load:
    lanes = [one for one in s.lanes if one.chosen_by == name and one.is_available]
    running = max(s.num_running, len(requests))
    number = running if len(s.costs.drafters) == 1 else len(requests)
    reading = s.costs.drafters[name].reading_seconds(_num_unread(s, requests))
    reading /= sum([1 + one.room for one in requests])
    return Load(s.costs, name, running, number, max(len(lanes), 1), reading)


def _num_unread(s: Snapshot, requests: Iterable[Request]) -> int:
    """Number of prompt tokens that drafters have to read for these requests."""
    homes = [(s.home(request), request) for request in requests]
    return sum([tokens_to_read(lane, request) for lane, request in homes if lane is not None])


def tokens_to_read(lane: Lane, request: Request) -> int:
    """Number of prompt tokens that a drafter has to read for a request."""
    return 0 if request in lane.known else request.num_tokens


def sized(
    s: Snapshot, requests: Sequence[Request], load: Load, trials: dict[Request, float]
) -> tuple[dict[Request, int], float]:
    """Return draft lengths, and tokens per second; add any trial among them to `trials`."""
    given = {one: one.policy.num_draft_tokens for one in requests}
    lengths = {one: min(number, one.room) for one, number in given.items() if number}
    free = [one for one in requests if given[one] is None]
    if not free:
        return lengths, load.rate_of(lengths)
    found, rate = with_trial(free, load, s.baseline, trials, lambda one: _num_unread(s, [one]))
    return lengths | found, rate


def add_calls(s: Snapshot, drafts: Drafts, lengths: dict[Request, int]) -> None:
    by_lane: dict[Lane, dict[Request, int]] = {}
    tokens = rows = 0.0
    for request, length in lengths.items():
        lane = s.home(request)
        assert lane is not None
        by_lane.setdefault(lane, {})[request] = length
        accepted, nodes = request.expectation.verified_at(length)
        tokens += 1 + accepted
        rows += 1 + nodes
    positions = sum(lengths.values())
    drafts.batch = drafts.batch.plus(Batch(rows, len(lengths), 0, tokens, positions))
    for lane, some in by_lane.items():
        call = new_call(s, lane, some)
        call.trial_steps = {one: steps for one, steps in drafts.trials.items() if one in some}
        drafts.calls.append(call)
        drafts.seconds = max(drafts.seconds, call.ends_at - s.now - _saved_reading(s, call))


def may_read(s: Snapshot, lane: Lane, num_others: int, request: Request) -> bool:
    """Return whether a drafter may read a prompt in a call that reads `num_others` other tokens.

    It may for a quarter of the time after which the call is given up, and, unless clients chose to
    draft, as long as the guard could bear it if no draft paid. If costs are unknown, it may read as
    much as the target in one verification. One prompt is always read.
    """
    if request in lane.known or not num_others:
        return True
    name, running = lane.chosen_by, s.num_running
    num_tokens, costs = num_others + request.num_tokens, s.costs.drafters[name]
    if not costs.is_known:
        return num_tokens <= s.max_prefill_tokens
    seconds, most = costs.reading_seconds(num_tokens), s.max_draft_seconds / 4
    if request.policy.num_draft_tokens is None:
        steps = s.baseline.steps_to_read(name, running)
        most = min(most, steps * s.costs.plain_seconds(running))
    return seconds < most


def _saved_reading(s: Snapshot, call: DraftCall) -> float:
    """Seconds of reading prompts in a call that benefit later drafts, by the tokens left."""
    if not call.num_unread:
        return 0.0
    tokens = sum([1 + one.expectation.at(k) for one, k in call.lengths.items()])
    left = 1 - min(tokens / sum([1 + one.room for one in call.lengths]), 1.0)
    costs = s.costs.drafters[call.lane.chosen_by]
    return left * costs.reading_seconds(call.num_unread, call.num_positions, len(call.lengths))


def new_call(s: Snapshot, lane: Lane, lengths: dict[Request, int]) -> DraftCall:
    """Return a call that begins now, with its expected end."""
    unread = sum([tokens_to_read(lane, one) for one in lengths])
    costs = s.costs.drafters[lane.chosen_by]
    seconds = costs.seconds(sum(lengths.values()), len(lengths), unread)
    rest = s.verification.ends_at - s.now if s.verification is not None else 0.0
    seconds, _ = costs.interference.ends(seconds, max(rest, 0.0))
    return DraftCall(
        lane, lengths, lengths.copy(), started_at=s.now, ends_at=s.now + seconds, num_unread=unread
    )

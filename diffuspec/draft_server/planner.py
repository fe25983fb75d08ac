"""The planner: how much to draft for one engine, given its step times and acceptance.

It decides like the scheduler of our own engine, with the same models: measured costs, acceptance by
confidence, and the guard that compares drafts with plain decoding. The difference is that the
engine waits for the drafts of all its requests together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffuspec.adl.acceptance import PRICES, nodes_to_verify, place_of
from diffuspec.adl.baseline import NUM_PLAIN, Baseline, Interval
from diffuspec.adl.cost_curve import MAX_JUMP
from diffuspec.adl.cost_model import CostModel, DraftCosts
from diffuspec.adl.draft_lengths import Load, with_trial
from diffuspec.draft_server.request import EngineRequest

# Prices of a pre-drafted position, down to those at which unlikely outcomes have drafts.
_AHEAD_PRICES = (*PRICES[:-1], 0.01, 0.007, 0.005, 0.003, 0.002, 0.0)
_LEAST_TOKENS = 3  # fewest tokens of a pre-draft
_SHOWN_ROWS = (1, 2, 4, 8, 16)
_MAX_SILENT_STEPS = 64  # number of steps over which the cost of an answer becomes negligible
_ANSWER_SHARE = 0.01  # largest share of the time that answers without drafts may take
# Drafted steps between the first two measurements of plain decoding. An engine is not profiled, and
# other programs may have been running during the first one.
_FIRST_AFTER = 16
# steps after which an engine's machine is as likely to have another speed as not
_SAME_SPEED_STEPS = 8
_MAX_HELD = 8  # plain steps in a row that may include prefills, and so measure nothing


@dataclass(slots=True)
class Sent:
    """What the engine verifies after an answer."""

    num_requests: int
    num_nodes: int
    draft_seconds: float  # time that the answer waited for the drafter
    reading_seconds: float  # the part of draft_seconds in which the drafter read prompts
    busy_seconds: float  # total busy seconds of the drafter when the answer was sent

    @property
    def num_rows(self) -> int:
        return self.num_requests + self.num_nodes


class Planner:
    """Sizes the drafts of one engine, and learns from its steps."""

    is_patient = False  # whether to wait for drafts until the deadline, however long they take

    def __init__(self, drafter: str, drafting: DraftCosts) -> None:
        """`drafting`: the cost of drafts, learnt from the calls of all engines."""
        self._drafter = drafter
        # Drafts are assumed not to slow the engine down.
        self._costs = CostModel([drafter], 0.0, _SAME_SPEED_STEPS)
        self._mine = self._costs.drafters[drafter]
        self._mine.calls, self._mine.reading = drafting.calls, drafting.reading
        self._baseline = Baseline([drafter], _FIRST_AFTER)
        self._rate = 0.0  # tokens per second of the best choice
        self._trials: dict[EngineRequest, int] = {}  # drafts made to find out whether they pay
        self._num_held = 0  # latest steps in a row that could not be measured

    @property
    def costs(self) -> DraftCosts:
        """The cost of drafts for this engine."""
        return self._mine

    def __str__(self) -> str:
        """Describe what it has learnt about the engine and drafts, in one line."""
        rows = "/".join(map(str, _SHOWN_ROWS))
        verify = [f"{1e3 * self._costs.verify_seconds(n, 1):.1f}" for n in _SHOWN_ROWS]
        draft = [f"{1e3 * self._mine.seconds(n, 1):.1f}" for n in _SHOWN_ROWS]
        return (
            f"a step of {rows} rows takes {'/'.join(verify)} ms, a draft "
            f"{'/'.join(draft)} ms; interference {self._mine.interference.value:.2f}, "
            f"overhead {1e3 * self._mine.overhead_seconds:.1f} ms, {self._rate:.0f} tokens/s"
        )

    def verify_seconds(self, num_rows: int, num_requests: int) -> float:
        """Expected seconds of a step of the engine."""
        return self._costs.verify_seconds(num_rows, num_requests)

    def plain_seconds(self, num_requests: int) -> float:
        """Expected seconds from one step of the engine without drafts to the next."""
        return self._costs.plain_seconds(num_requests)

    # ---- what to draft

    def lengths(self, requests: Sequence[EngineRequest]) -> dict[EngineRequest, int]:
        """Return the draft length for each request; empty if the guard does not allow drafts.

        A draft is as long as its tokens are worth verifying. Pre-drafts cost the engine little, and
        reveal when the text has become easy, so requests with poor prospects get short ones.
        """
        may_draft = [one for one in requests if one.room > 0]
        number, self._trials = len(requests), {}
        if not may_draft:
            return {}
        reading = self.reading_seconds(may_draft) / sum([1 + one.room for one in may_draft])
        load = Load(self._costs, self._drafter, number, len(may_draft), 1, reading)
        # what is done ahead is hidden; waiting is decided separately
        load.exposed_share = 0.0
        trials: dict[EngineRequest, float] = {}
        found, self._rate = with_trial(
            may_draft, load, self._baseline, trials, lambda one: one.num_unread
        )
        for steps in trials.values():
            self._baseline.take_trial(self._drafter, number, steps)
        self._trials = {one: found[one] for one in trials}
        if not self._baseline.allows(self._drafter, number):
            return found
        self._num_held += 1
        if self._baseline.wants_plain(number) and self._num_held <= _MAX_HELD:
            return found
        return {one: max(found.get(one, 0), min(_LEAST_TOKENS, one.room)) for one in may_draft}

    def lengths_now(
        self, requests: Sequence[EngineRequest], at_hand: Sequence[float], num_rows: int
    ) -> dict[EngineRequest, int]:
        """Return the lengths to draft while the engine waits, for requests without drafts.

        at_hand: expected tokens of each request without such a draft. num_rows: other rows to
        verify. The price of a position is chosen so that the gain exceeds the value of the time by
        the most.
        """
        if not self._rate:
            return {one: one.length for one in requests}
        offers = [one.expectation.offers(one.room) for one in requests]
        unread, verify = sum([one.num_unread for one in requests]), self._costs.verification.curve
        best, chosen = 0.0, {}
        for place in range(len(offers[0].lengths)):
            gainful = [
                (one, offer.lengths[place], offer.tokens[place] - there, offer.rows[place])
                for one, offer, there in zip(requests, offers, at_hand, strict=True)
                if offer.tokens[place] > there
            ]
            lengths = {one: length for one, length, _, _ in gainful}
            rows = round(sum([rows for _, _, _, rows in gainful]))
            seconds = self._mine.seconds(sum(lengths.values()), len(lengths), unread)
            seconds += verify.at(num_rows + rows) - verify.at(num_rows)
            value = sum([gain for _, _, gain, _ in gainful]) - self._rate * seconds
            if value > best:
                best, chosen = value, lengths
        return chosen

    def lengths_ahead(
        self,
        outcomes: Sequence[tuple[float, EngineRequest, int]],
        seconds_left: float,
        num_requests: int,
    ) -> list[int]:
        """Return the pre-draft lengths for possible outcomes; 0: no pre-draft.

        Each outcome has its probability, its request, and the room for a draft after it.
        `num_requests` are being verified. A position is worth the chance that its token will be
        accepted. The price of a position is chosen so that the gain exceeds the cost to the engine
        by the most: the time beyond the `seconds_left` of the verification, and the slow-down of
        the verification. Outcomes whose drafts gain less than one for which the engine would wait
        have none.
        """
        # The first tokens of an answer share the cost of reading its prompt.
        reading = {
            one: self.reading_seconds([one]) / (1 + one.room) for one in {r for _, r, _ in outcomes}
        }
        pairs = {(request, room) for _, request, room in outcomes}
        choices = {pair: self._choices_ahead(*pair, num_requests) for pair in pairs}
        best, chosen = 0.0, [0] * len(outcomes)
        for price in _AHEAD_PRICES:
            found = [
                (chance, *choices[request, room][place_of(price / max(chance, 1e-6))])
                for chance, request, room in outcomes
            ]
            lengths = [length for _, length, _ in found]
            number = len(lengths) - lengths.count(0)
            seconds = self._mine.seconds(sum(lengths) + number, number)
            drafted = {one for length, (_, one, _) in zip(lengths, outcomes, strict=True) if length}
            seconds += sum([reading[one] for one in drafted])
            gained = sum([chance * gain for chance, _, gain in found])
            gained -= self._rate * self._lost_seconds(seconds, seconds_left)
            if gained > best:
                best, chosen = gained, lengths
        return self._with_trials(chosen, outcomes)

    def _choices_ahead(
        self, request: EngineRequest, room: int, num_requests: int
    ) -> list[tuple[int, float]]:
        """Return length and gain of a pre-draft at each price of a position; 0, 0: none gains."""
        now = self._worth_now(request, num_requests)
        lengths = request.expectation.offers(room).lengths
        gains = {k: self._worth(request, k, num_requests) - now for k in set(lengths)}
        return [(k, gains[k]) if gains[k] > 0 else (0, 0.0) for k in lengths]

    def _lost_seconds(self, seconds: float, seconds_left: float) -> float:
        """Seconds that a draft call costs an engine whose verification takes seconds_left more."""
        slower = self._mine.interference.value * min(seconds, seconds_left)
        return max(seconds - seconds_left, 0.0) + slower

    def _with_trials(
        self, chosen: list[int], outcomes: Sequence[tuple[float, EngineRequest, int]]
    ) -> list[int]:
        """Add a draft for the likeliest outcome of each request on trial that has no pre-draft."""
        left = {one for one in self._trials if not one.pre_drafts()}
        left -= {one for length, (_, one, _) in zip(chosen, outcomes, strict=True) if length}
        lengths = [*chosen]
        for place, (_, request, room) in enumerate(outcomes):
            if request in left:
                lengths[place] = min(self._trials[request], room)
                left.remove(request)
        return lengths

    def _worth_now(self, request: EngineRequest, num_requests: int) -> float:
        """Return the value of the request's next draft if the engine waits for it."""
        seconds = self._mine.seconds(request.length + 1, 1)
        worth = self._worth(request, request.length, num_requests)
        return max(worth - self._rate * seconds, 0.0)

    def _worth(self, request: EngineRequest, length: int, num_requests: int) -> float:
        """Return the tokens that a draft gains, less the cost of its verification in tokens.

        Its cost is its share of a step in which all requests have such drafts.
        """
        expectation, verify = request.expectation, self._costs.verification.curve
        tokens, rows = expectation.verified_at(length)
        seconds = verify.at(num_requests * (1 + rows)) - verify.at(num_requests)
        return max(tokens - self._rate * seconds / num_requests, 0.0)

    def reading_seconds(self, requests: Sequence[EngineRequest]) -> float:
        """Return how much longer drafts for these requests take because prompts must be read."""
        return self._mine.reading_seconds(sum([one.num_unread for one in requests]))

    def num_nodes(self, reaches: Sequence[Sequence[float]], num_requests: int) -> list[int]:
        """Return for each draft the number of its likeliest nodes to send."""
        curve = self._costs.verification.curve
        if not curve.is_known or not self._rate or not reaches:
            return [len(one) for one in reaches]
        return nodes_to_verify(reaches, num_requests, curve, self._rate)

    def num_silent_steps(self, requests: Sequence[EngineRequest]) -> int:
        """Return the number of next steps that the engine need not report, if `lengths` is empty.

        Waiting for answers is not part of plain decoding, which is measured during these steps.
        """
        number = len(requests)
        if not any([one.room for one in requests]):
            return _MAX_SILENT_STEPS
        step = self.plain_seconds(number)
        if not self._baseline.allows(self._drafter, number):
            steps = self._baseline.num_stopped_steps(self._drafter, number)
        elif self._baseline.wants_plain(number) or not step:
            steps = NUM_PLAIN
        else:  # no draft is worth it: few answers are waited for that say so
            steps = max(self._mine.overhead_seconds / (_ANSWER_SHARE * step), NUM_PLAIN)
        return min(int(steps), _MAX_SILENT_STEPS)

    # ---- reports of the engine

    def observe_silence(self, num_requests: int, num_steps: int, seconds: float) -> None:
        """Learn from steps without drafts, the first of them after an answer."""
        self._num_held = 0
        costs, each = self._costs, seconds / num_steps
        plain = costs.plain_seconds(num_requests) if costs.verification.curve.is_known else each
        spent = num_steps * min(each, MAX_JUMP * plain)
        interval = Interval(num_requests, spent, plain, plain, num_steps=num_steps)
        if self._baseline.observe(interval):
            costs.observe_verification(num_requests, num_requests, each, {}, is_plain=True)
            costs.plain.observe(num_requests, each)

    def observe(
        self, sent: Sent, accepted: float, verify: float, wait: float, busy_seconds: float
    ) -> None:
        """Learn from a step in which the engine only verified what was sent.

        busy_seconds: the drafter's total busy time when the engine reported the step.
        """
        self._num_held = 0
        number, name, costs = sent.num_requests, self._drafter, self._costs
        expected = costs.verify_seconds(sent.num_rows, number)
        if expected:  # a much longer step was disturbed by other programs
            verify = min(verify, MAX_JUMP * expected)
        drafting = min(busy_seconds - sent.busy_seconds, verify)
        costs.observe_verification(sent.num_rows, number, verify, {name: drafting})
        # If an answer was delayed, at most the time of the step itself counts.
        self._mine.observe_overhead(min(wait - sent.draft_seconds, verify))
        plain = costs.plain_seconds(number)
        interval = Interval(number, wait + verify, plain, plain)
        if sent.num_nodes or drafting or sent.draft_seconds:
            spent = sent.draft_seconds + drafting
            spent += costs.verify_seconds(sent.num_rows, number)
            spent -= costs.verify_seconds(number, number)
            interval.cost_seconds, interval.accepted = {name: spent}, {name: accepted}
            interval.reading = {name: sent.reading_seconds}
        if self._baseline.observe(interval):
            costs.plain.observe(number, wait + verify)

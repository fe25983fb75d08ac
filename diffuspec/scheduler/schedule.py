"""The schedule: what to verify, draft and pre-draft now, and until when to wait.

`schedule` is a pure function of frozen values. Requests are drafted for if that pays, by
`speculation.lengths`. While the verifier is idle, candidate plans are compared: verify what is
ready, wait for drafts, or draft first. Each is worth the tokens that it commits until all requests
in it have had their step, minus the price of its seconds: a second costs as many tokens as the best
alternative commits in one, and `first_token_price` times that for each awaited first token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from diffuspec.core.types import MAX_PRE_DRAFTS
from diffuspec.speculation.costs import DraftCosts, Interference
from diffuspec.speculation.lengths import (
    Ahead,
    Load,
    nodes_to_verify,
    num_ahead,
    rate_of,
    size,
)
from diffuspec.speculation.values import (
    DrafterView,
    DraftPlan,
    DraftTicket,
    Plan,
    RequestView,
    Score,
    Snapshot,
)

_MAX_PROMPT_TOKENS = 8192  # prompt tokens of all requests in one verification
_NO_COSTS = DraftCosts(Interference.assumed(0.0))


def schedule(s: Snapshot) -> Plan:
    """Return the best plan."""
    return _Scheduling(s).plan()


def plain_plan(s: Snapshot) -> Plan:
    """Return a plan that asks no model: it verifies all ready requests, and drafts for none."""
    if s.now < s.verifier_at:
        return Plan(wait_until=s.verifier_at)
    if s.verification_ends_at is not None:
        return Plan()
    ready = [one.request_id for one in s.requests if one.state == "ready"]
    return Plan(verify=s.isolated[0] if s.isolated else ready)


def num_decoding(s: Snapshot) -> int:
    """Return how many requests decode: they neither read their prompt nor wait for a suspect."""
    ready, _ = _chosen(s)
    return _num_decoding(s, ready)


class _Batch(NamedTuple):
    """Requests that are verified together."""

    num_rows: float = 0.0
    num_requests: float = 0
    num_prompts: float = 0  # requests whose first token is awaited
    tokens: float = 0.0  # expected committed tokens

    def plus(self, *others: _Batch) -> _Batch:
        return _Batch(*map(sum, zip(self, *others, strict=True)))


@dataclass(slots=True)
class _Groups:
    """The ready requests, by what they wait for."""

    prompts: list[RequestView] = field(default_factory=list)  # read in the next verification
    drafted: list[RequestView] = field(default_factory=list)
    plain: list[RequestView] = field(default_factory=list)  # without a draft in this step
    open: list[RequestView] = field(default_factory=list)  # may draft, or be verified without

    @property
    def settled(self) -> list[RequestView]:
        """Requests that can only be verified."""
        return [*self.prompts, *self.drafted, *self.plain]


class _Scheduling:
    """The making of one plan: the parts found so far."""

    def __init__(self, s: Snapshot) -> None:
        self._s = s
        self._ready, self._alone = _chosen(s)
        self._num_running = _num_decoding(s, self._ready)
        self._drafters = {one.number: one for one in s.drafters}
        self._homes = _placed(s, self._ready)
        self._reasons: dict[str, str] = {}
        self._max_read: dict[str, int] = {}
        self._rate = s.rate

    def plan(self) -> Plan:
        s = self._s
        can_verify = s.verification_ends_at is None and s.now >= s.verifier_at
        if can_verify and s.isolated:
            return Plan(verify=s.isolated[0], rate=s.rate, alone=self._alone)
        groups = self._grouped()
        drafts = self._drafts(groups)
        plan = self._verify_or_wait(groups, drafts) if can_verify else Plan(drafts=drafts)
        plan = replace(
            plan,
            homes=self._homes,
            alone=self._alone,
            rate=self._rate,
            reasons=self._reasons,
            max_read={one: n for one, n in self._max_read.items() if one in plan.verify},
            num_nodes=self._num_nodes(plan.verify),
            health_checks=self._health_checks(plan.verify),
        )
        if s.limits.overlap:
            plan = self._with_pre_drafts(plan)
        if s.now < s.verifier_at:
            plan = replace(plan, wait_until=min(plan.wait_until, s.verifier_at))
        return plan

    def _home(self, request: RequestView) -> DrafterView | None:
        number = self._homes.get(request.request_id, request.home)
        return None if number is None else self._drafters[number]

    # ---- what is ready

    def _grouped(self) -> _Groups:
        groups = _Groups()
        prompts = []
        for request in self._ready:
            if request.is_long:
                prompts.append(request)
            elif request.is_settled and request.reach:
                groups.drafted.append(request)
            elif request.may_draft and self._home(request) is not None:
                groups.open.append(request)
            else:
                groups.plain.append(request)
                self._reasons[request.request_id] = _why_not(request)
        groups.prompts = self._prompts_to_read(prompts)
        return groups

    def _prompts_to_read(self, prompts: Sequence[RequestView]) -> list[RequestView]:
        """Share the tokens that a verification may read among prompts, the oldest first."""
        if not prompts:
            return []
        limits, costs = self._s.limits, self._s.costs
        seconds = limits.max_prefill_seconds
        if costs.is_known:
            seconds = max(seconds, costs.plain_seconds(max(self._num_running, 1)))
        left = costs.num_rows_within(seconds, _MAX_PROMPT_TOKENS)
        chosen = []
        for request in prompts:
            number = min(request.num_unread, limits.max_prefill_tokens, left)
            if number > 0:
                chosen.append(request)
                self._max_read[request.request_id] = number
                left -= number
        return chosen

    # ---- what to draft

    def _drafts(self, groups: _Groups) -> list[DraftPlan]:
        """Return the calls that idle drafters could make for open requests.

        Of the open requests, those remain that are in the calls. Those that do not draft become
        plain ones. Requests with draft lengths of their own are in no group while they wait for
        their drafter.
        """
        by_name: dict[str, list[RequestView]] = {}
        for request in groups.open:
            by_name.setdefault(request.drafter, []).append(request)
        groups.open, rates = [], []
        tickets: dict[int, list[DraftTicket]] = {}
        reading = Counter[int]()  # prompt tokens to read in each drafter's call
        for name, requests in by_name.items():
            sized, rate = self._sized(name, requests)
            rates.append(rate)
            for request in requests:
                ticket, drafter = sized.get(request.request_id), self._home(request)
                assert drafter is not None
                unread = _num_unread(drafter, request)
                if (
                    ticket is not None
                    and drafter.is_idle
                    and self._may_read(name, reading[drafter.number], unread)
                ):
                    reading[drafter.number] += unread
                    groups.open.append(request)
                    tickets.setdefault(drafter.number, []).append(ticket)
                elif ticket is None or request.fixed_length is None:
                    groups.plain.append(request)
                    if ticket is not None:
                        self._reasons[request.request_id] = "its drafter is busy"
        if rates:
            self._rate = max(rates)
        return [
            self._draft_plan(self._drafters[number], some, reading[number])
            for number, some in tickets.items()
        ]

    def _sized(
        self, name: str, requests: Sequence[RequestView]
    ) -> tuple[dict[str, DraftTicket], float]:
        """Return the drafts to make for requests, and the tokens per second with them."""
        load = self._load(name, requests)
        given = {
            one.request_id: min(one.fixed_length, one.room)
            for one in requests
            if one.fixed_length is not None
        }
        tickets = {one: DraftTicket(one, length) for one, length in given.items()}
        rate = rate_of(given, requests, load)
        if free := [one for one in requests if one.fixed_length is None]:
            sized = size(free, load, self._s.guard)
            rate = max(rate, sized.rate)
            for one, length in sized.lengths.items():
                tickets[one] = DraftTicket(one, length, is_exploration=one == sized.explored)
            missing = {one.request_id for one in free} - sized.lengths.keys()
            self._reasons.update(dict.fromkeys(missing, sized.reason))
        return tickets, rate

    def _load(self, name: str, requests: Sequence[RequestView]) -> Load:
        s = self._s
        mine = [one for one in s.drafters if one.name == name and one.is_available]
        running = max(self._num_running, len(requests))
        is_only = len(s.costs.drafters) == 1
        unread = {}
        for request in requests:
            home = self._home(request)
            if home is not None and (number := _num_unread(home, request)):
                unread[request.request_id] = number
        drafting = running if is_only else len(requests)
        return Load(s.costs, name, running, drafting, max(len(mine), 1), unread)

    def _may_read(self, name: str, num_others: int, num_unread: int) -> bool:
        """Return whether a call that reads `num_others` other tokens may read these, too."""
        if not (num_others and num_unread):
            return True
        costs, limits = self._s.costs.drafters[name], self._s.limits
        if not costs.is_known:
            return num_others + num_unread <= limits.max_prefill_tokens
        return costs.reading_seconds(num_others + num_unread) <= limits.max_reading_seconds

    def _draft_plan(
        self, drafter: DrafterView, tickets: Sequence[DraftTicket], num_unread: int
    ) -> DraftPlan:
        """Return a call that begins now, with its expected seconds."""
        costs = self._s.costs.drafters[drafter.name]
        positions = sum([one.length for one in tickets])
        seconds = costs.seconds(positions, len(tickets), num_unread)
        rest = (self._s.verification_ends_at or self._s.now) - self._s.now
        seconds, _ = costs.interference.ends(seconds, max(rest, 0.0))
        return DraftPlan(drafter.number, tickets, seconds, num_unread)

    # ---- verify, wait, or draft first

    def _verify_or_wait(self, groups: _Groups, drafts: Sequence[DraftPlan]) -> Plan:
        """Choose what to do while the verifier is idle."""
        free = [one for one in groups.open if one.fixed_length is None]
        tickets = [ticket for call in drafts for ticket in call.tickets]
        explores = any([ticket.is_exploration for ticket in tickets])
        ready, must_draft = groups.settled, explores or len(free) < len(groups.open)
        everything = [*ready, *free]
        coming, left = self._coming()
        if not drafts and not coming.num_requests:
            return Plan(verify=_ids(everything))  # there is no choice
        if not coming.num_requests and not ready:
            return Plan(drafts=drafts)  # `choose_lengths` has chosen
        now, candidates = self._batch(ready), list[tuple[Score, Plan]]()
        if everything and not must_draft:
            whole = now.plus(self._batch(free, with_drafts=False))
            verify = self._score("verify", whole, left, coming)
            candidates.append((verify, Plan(verify=_ids(everything))))
        if coming.num_requests and not must_draft:
            whole = now.plus(self._batch(free, with_drafts=False), coming)
            wait = self._score("wait for drafts", _Batch(), left, whole)
            candidates.append((wait, Plan(wait_until=_later(self._s.now, left))))
        if drafts:
            seconds = max([left, *[call.seconds for call in drafts]])
            drafted = self._drafted(drafts).plus(coming)
            first = self._score("draft", _Batch(), seconds, now.plus(drafted))
            candidates.append((first, Plan(drafts=drafts)))
            if ready:
                beside = self._score("draft beside", now, seconds, drafted)
                candidates.append((beside, Plan(verify=_ids(ready), drafts=drafts)))
        candidates.sort(key=lambda one: one[0].value, reverse=True)
        return replace(candidates[0][1], considered=[score for score, _ in candidates])

    def _coming(self) -> tuple[_Batch, float]:
        """Return the requests whose drafts are being made, and the seconds until all are ready.

        A call that has taken twice as long as expected may hang, and is not waited for.
        """
        batch, left, now = _Batch(), 0.0, self._s.now
        views = {one.request_id: one for one in self._s.requests}
        for drafter in self._s.drafters:
            call = drafter.call
            if call is None or not call.awaited or call.is_overdue(now):
                continue
            for ticket in call.tickets:
                if ticket.request_id in call.awaited and ticket.request_id in views:
                    batch = batch.plus(_after_draft(views[ticket.request_id], ticket.length))
            left = max(left, abs(call.ends_at - now))  # a late call takes as long again
        return batch, left

    def _drafted(self, drafts: Sequence[DraftPlan]) -> _Batch:
        views = {one.request_id: one for one in self._ready}
        tickets = [ticket for call in drafts for ticket in call.tickets]
        return _Batch().plus(*[_after_draft(views[one.request_id], one.length) for one in tickets])

    def _batch(self, requests: Iterable[RequestView], *, with_drafts: bool = True) -> _Batch:
        """Return the reading and the expected tokens of a verification of these requests."""
        batch = _Batch()
        for request in requests:
            if request.is_long:
                number = self._max_read.get(request.request_id, request.num_unread)
                is_last = number == request.num_unread
                batch = batch.plus(_Batch(number, 1, 1, int(is_last)))
            else:
                reach = request.reach if with_drafts else ()
                batch = batch.plus(_Batch(1 + len(reach), 1, 0, 1 + sum(reach)))
        return batch

    def _score(self, name: str, first: _Batch, drafting_seconds: float, then: _Batch) -> Score:
        """Score a plan that verifies `first` now, beside drafts that are verified with `then`."""
        costs, number = self._s.costs, first.num_requests
        seconds = costs.verify_seconds(first.num_rows, number) if number else 0.0
        first_ends, drafts_end = self._interference().ends(seconds, drafting_seconds)
        tokens, ends_at = first.tokens + then.tokens, max(first_ends, drafts_end)
        if then.num_requests:
            # Requests that were verified first may go on with the others, without drafts.
            alone = costs.verify_seconds(then.num_rows, then.num_requests)
            rows, requests = then.num_rows + number, then.num_requests + number
            joint = costs.verify_seconds(rows, requests)
            if number - self._rate * (joint - alone) > 0:
                tokens, alone = tokens + number, joint
            ends_at += alone
        delay = first.num_prompts * first_ends + then.num_prompts * ends_at
        price = ends_at + self._s.limits.first_token_price * delay
        return Score(name, tokens, ends_at, delay, tokens - self._rate * price)

    def _interference(self) -> Interference:
        """Return that of the drafter that slows the verifier down the most."""
        costs = self._s.costs.drafters.values()
        most = max(costs, key=lambda one: one.interference.value, default=_NO_COSTS)
        return most.interference

    # ---- completing the plan

    def _num_nodes(self, verify: Sequence[str]) -> dict[str, int]:
        """Return how many nodes are worth verifying of drafts whose length was free."""
        chosen = {*verify}
        requests = [one for one in self._ready if one.request_id in chosen]
        cut = [one for one in requests if one.reach and one.fixed_length is None]
        if not cut or not self._s.costs.is_known:
            return {}
        batch = self._batch(requests)
        num_others = round(batch.num_rows) - sum([len(one.reach) for one in cut])
        price = self._rate * (1 + self._s.limits.first_token_price * batch.num_prompts)
        reaches = [one.reach for one in cut]
        kept = nodes_to_verify(reaches, num_others, self._s.costs, price)
        # A verdict on at least one node of an exploring draft calibrates the others' confidences.
        return {
            one.request_id: max(number, int(one.ticket is not None and one.ticket.is_exploration))
            for one, number in zip(cut, kept, strict=True)
        }

    def _health_checks(self, verify: Sequence[str]) -> list[tuple[int, str]]:
        """Return failed drafters to try, beside a verification, with copies of draft requests."""
        due = [one for one in self._s.drafters if one.is_idle and one.is_check_due]
        if not verify or not due:
            return []
        chosen = {*verify}
        fit = [
            one.request_id
            for one in self._ready
            if one.request_id in chosen and one.room > 0 and one.fixed_length != 0
        ]
        return [(one.number, fit[0]) for one in due] if fit else []

    def _with_pre_drafts(self, plan: Plan) -> Plan:
        """Add drafts for the likeliest outcomes of the verification in flight."""
        s = self._s
        if s.verification_ends_at is None:
            if plan.verify:  # drafts begin in the next plan, in one call with the outcomes
                return replace(plan, drafts=(), wait_until=s.now)
            return plan
        calls = {call.drafter: call for call in plan.drafts}
        left = max(s.verification_ends_at - s.now, 0.0)
        for drafter in s.drafters:
            if drafter.is_idle and drafter.is_available and drafter.may_pre_draft:
                call = calls.get(drafter.number, DraftPlan(drafter.number, (), 0.0, 0))
                if ahead := self._pre_drafts(drafter, call, left):
                    tickets = [*call.tickets, *ahead]
                    calls[drafter.number] = self._draft_plan(drafter, tickets, call.num_unread)
        return replace(plan, drafts=[*calls.values()])

    def _pre_drafts(
        self, drafter: DrafterView, call: DraftPlan, seconds_left: float
    ) -> list[DraftTicket]:
        """Return the pre-drafts of one drafter that pay, and those that clients chose."""
        s = self._s
        given: list[tuple[float, DraftTicket]] = []
        priced: list[tuple[float, DraftTicket]] = []
        verifying = [one for one in s.requests if one.state == "verifying"]
        mine = [one for one in verifying if one.home == drafter.number and one.outcomes]
        for request in mine:
            if request.is_priced and self._stops_drafting(request):
                continue
            length = request.fixed_length or (request.ticket.length if request.ticket else 0)
            (priced if request.is_priced else given).extend(
                (
                    one.probability,
                    DraftTicket(request.request_id, min(length, one.room), one.outcome),
                )
                for one in request.outcomes
            )
        priced.sort(key=lambda one: one[0], reverse=True)
        outcomes = [Ahead(chance, ticket.length) for chance, ticket in priced[:MAX_PRE_DRAFTS]]
        costs = s.costs.drafters[drafter.name]
        awaited = [one.length for one in call.tickets]
        number = num_ahead(outcomes, seconds_left, costs, awaited, len(mine))
        return [ticket for _, ticket in [*given, *priced[:number]]][:MAX_PRE_DRAFTS]

    def _stops_drafting(self, request: RequestView) -> bool:
        """Return whether a request is not expected to draft after this step."""
        if request.fixed_length is not None:
            return False
        explored = request.ticket is not None and request.ticket.is_exploration
        return explored or self._s.guard.wants_plain(max(self._num_running, 1))


def _chosen(s: Snapshot) -> tuple[list[RequestView], str | None]:
    """Return the ready requests that may be in calls now, and a suspect that runs alone.

    A request at which workers were lost repeatedly waits until no other request can go on. Then the
    first of them runs alone until it ends, or waits for its reader; the next one follows.
    """
    ready = [one for one in s.requests if one.state == "ready"]
    suspects = [one for one in s.requests if one.is_suspect]
    if not suspects:
        return ready, None
    if s.alone is not None and any([one.request_id == s.alone for one in suspects]):
        return [one for one in ready if one.request_id == s.alone], s.alone
    others = [one for one in s.requests if not one.is_suspect]
    busy = any([one.state != "ready" for one in s.requests]) or bool(s.isolated)
    if others or busy:
        return [one for one in ready if not one.is_suspect], None
    return [suspects[0]], suspects[0].request_id


def _num_decoding(s: Snapshot, ready: Iterable[RequestView]) -> int:
    busy = [one for one in s.requests if one.state != "ready"]
    return sum([not one.is_long for one in [*busy, *ready]])


def _placed(s: Snapshot, ready: Iterable[RequestView]) -> dict[str, int]:
    """Return a drafter for each request that has none: one that holds its prefix, or the idlest."""
    homeless = [one for one in ready if one.home is None and one.may_draft]
    if not homeless:
        return {}
    placed = Counter([one.home for one in s.requests if one.home is not None])
    homes = {}
    for request in homeless:
        fit = [one for one in s.drafters if one.name == request.drafter and one.is_available]
        if fit:
            best = min(fit, key=lambda one: _burden(one, request, placed[one.number]))
            homes[request.request_id] = best.number
            placed[best.number] += 1
    return homes


def _burden(drafter: DrafterView, request: RequestView, num_placed: int) -> tuple[bool, int, int]:
    return drafter.number not in request.held_by, num_placed, drafter.num_held


def _num_unread(drafter: DrafterView, request: RequestView) -> int:
    """Number of prompt tokens that a drafter has to read for a request."""
    return 0 if drafter.number in request.held_by else request.num_tokens


def _after_draft(request: RequestView, length: int) -> _Batch:
    """Return the verification of a request once it has a draft of this length."""
    accepted, nodes = request.prospects.verified_at(length)
    return _Batch(1 + nodes, 1, 0, 1 + accepted)


def _why_not(request: RequestView) -> str:
    """Return why a request is verified without a draft."""
    if request.fixed_length == 0:
        return "speculation is off"
    if request.room <= 0:
        return "no draft fits: one token is left"
    return "its draft was empty" if request.is_settled else "no drafter is available"


def _later(now: float, seconds: float) -> float:
    # a tenth of a millisecond: the pace of the loop itself
    return now + max(seconds, 1e-4)


def _ids(requests: Iterable[RequestView]) -> list[str]:
    return [one.request_id for one in requests]

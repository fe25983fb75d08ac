"""LossBudget: what drafts may lose to plain decoding before they stop.

What a draft costs the requests beside it is not in the time of its own step: they wait for the same
processor, and are verified in smaller batches. So the time in which all requests committed their
tokens is compared with what plain decoding has taken for as many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

_MOST_STEPS = 12  # of plain decoding, that drafts may lose
_MOST_SAVED = 60  # more, which they have gained before
_MOST_AT_ONCE = 64  # steps, that one verification counts for: a drafter may have hung
_LEAST_GAIN = 0.1  # of drafts that pay: first tokens wait for their longer passes
_SHARE = 0.01  # of the time without drafts, by which a loss is made good
_NUM_MEASURED = 3  # steps of plain decoding, before there are drafts
_MAX_PATIENCE = 16  # verifications in which other requests' drafts may hinder that
_SMOOTHING = 0.05  # a step may have waited for another process


@dataclass(slots=True, eq=False)
class _Loss:
    """What drafts have lost under one load."""

    is_spent: bool = False
    seconds: float = 0.0  # with drafts, less what has been made good
    # Steps that would have committed the same tokens, by the number of running requests
    plain_steps: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class LossBudget:
    """Adds up what drafts lose. Once too much, they stop until enough time has passed without them.

    So they lose no more than _SHARE of the time where plain decoding is faster. Of what they gain,
    _MOST_SAVED steps are saved up, so that a few bad drafts in a row do not stop those that pay.
    Numbers of running requests are those that share the batches. Each doubling of that number has
    a budget of its own: drafts that lose among many may pay among few, not the other way round.
    """

    def __init__(self) -> None:
        self._losses: dict[int, _Loss] = defaultdict(_Loss)  # by the bits of the number running
        self._plain: dict[int, float] = {}  # seconds of a step, by the number of running requests
        self._num_plain = Counter[int]()  # steps measured
        self._num_observed = Counter[int]()  # verifications

    def is_spent(self, num_running: int) -> bool:
        """Return whether drafts have lost too much among about as many requests, or fewer."""
        return any(loss.is_spent for loss in self._up_to(num_running))

    def _up_to(self, num_running: int) -> list[_Loss]:
        bits = num_running.bit_length()
        return [loss for number, loss in self._losses.items() if number <= bits]

    def is_waiting(self, num_running: int) -> bool:
        """Return whether plain decoding is to be measured first."""
        if self._num_observed[num_running] >= _MAX_PATIENCE:
            return False
        near = [number for number in self._plain if 4 * abs(number - num_running) <= num_running]
        return all(self._num_plain[number] < _NUM_MEASURED for number in near)

    def _plain_step(self, num_running: int) -> float:
        """Return the seconds of a step of plain decoding, by the most similar number measured.

        0 if none has been.
        """
        if num_running in self._plain:
            return self._plain[num_running]
        nearest = min(self._plain, key=lambda number: abs(number - num_running), default=0)
        return self._plain.get(nearest, 0.0)

    def observe(self, num_tokens: int, num_running: int, seconds: float, is_plain: bool) -> None:
        """Learn from the time in which the running requests committed that many tokens.

        The whole loss is reckoned anew each time: it is corrected while drafts have stopped.
        """
        self._num_observed[num_running] += 1
        loss, spent = self._losses[num_running.bit_length()], list[_Loss]()
        if is_plain:
            self._measure(num_tokens, seconds)  # one of each request verified, which may be a few
            spent = [one for one in self._up_to(num_running) if one.is_spent]
            for one in spent:
                one.seconds -= _SHARE * seconds
        elif self._plain:
            loss.seconds += min(seconds, _MOST_AT_ONCE * self._plain_step(num_running))
            loss.plain_steps[num_running] += num_tokens / num_running
        for one in {loss, *spent}:
            self._settle(one, num_running)

    def _settle(self, loss: _Loss, num_running: int) -> None:
        """Note whether a budget is spent now."""
        lost = loss.seconds - self._plain_seconds(loss)
        if lost <= 0:
            loss.is_spent = False
            loss.seconds = max(lost, -_MOST_SAVED * self._plain_step(num_running))
            loss.plain_steps.clear()
        elif lost > _MOST_STEPS * self._plain_step(num_running):
            loss.is_spent = True

    def _measure(self, num_running: int, seconds: float) -> None:
        self._num_plain[num_running] += 1
        rate = max(_SMOOTHING, 1 / self._num_plain[num_running])
        before = self._plain.get(num_running, 0.0)
        self._plain[num_running] = before + rate * (seconds - before)

    def _plain_seconds(self, loss: _Loss) -> float:
        """Return what drafts may take."""
        plain = sum(count * self._plain_step(number) for number, count in loss.plain_steps.items())
        return plain / (1 + _LEAST_GAIN)

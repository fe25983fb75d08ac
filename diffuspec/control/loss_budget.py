"""LossBudget: what drafts may lose to plain decoding before they stop.

What a draft costs the requests beside it is not in the time of its own step: they wait for the same
processor, and are verified in smaller batches. So the time in which all requests committed their
tokens is compared with what plain decoding would have taken for as many.
"""

from __future__ import annotations

from collections.abc import Callable

_MOST_STEPS = 12  # of plain decoding, that drafts may lose
_MOST_AT_ONCE = 64  # steps, that one verification counts for: a drafter may have hung
_LEAST_GAIN = 0.1  # of drafts that pay: first tokens wait for their longer passes
_SHARE = 0.01  # of the time without drafts, by which a loss is made good


class LossBudget:
    """Adds up what drafts lose. Once too much, they stop until enough time has passed without them.

    So they lose no more than _SHARE of the time where plain decoding is faster. What they gain is
    not saved up.
    """

    def __init__(self) -> None:
        self.is_spent = False
        self._forget()

    def _forget(self) -> None:
        self._seconds = 0.0  # with drafts, less what has been made good
        self._num_tokens = 0  # committed meanwhile
        self._num_plain_steps = 0.0  # that would have committed them

    def observe(
        self,
        num_tokens: int,
        num_running: int,
        seconds: float,
        is_plain: bool,
        plain_step: Callable[[int], float],
    ) -> None:
        """Learn from the time in which the running requests committed that many tokens.

        plain_step returns the seconds of a step of plain decoding by running requests. The whole
        loss is reckoned by it each time: it is corrected while drafts have stopped.
        """
        if is_plain:
            self._seconds -= _SHARE * seconds
        else:
            self._seconds += min(seconds, _MOST_AT_ONCE * plain_step(num_running))
            self._num_tokens += num_tokens
            self._num_plain_steps += num_tokens / num_running
        if self._seconds <= 0 or (lost := self._seconds - self._plain_seconds(plain_step)) <= 0:
            self.is_spent = False
            self._forget()
        elif lost > _MOST_STEPS * plain_step(num_running):
            self.is_spent = True

    def _plain_seconds(self, plain_step: Callable[[int], float]) -> float:
        """Return what drafts may take, if the time of a plain step is linear in requests."""
        steps = self._num_plain_steps
        if not steps:
            return 0.0
        return steps * plain_step(round(self._num_tokens / steps)) / (1 + _LEAST_GAIN)

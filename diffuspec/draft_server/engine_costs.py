"""The costs of an engine of another make: it has no profile, and its speed is seldom measured."""

from __future__ import annotations

from collections.abc import Iterable

from diffuspec.adl.cost_curve import MAX_JUMP, OWN_SMOOTHING, SMOOTHING, Speed
from diffuspec.adl.cost_model import CallCosts, CostModel

_SAME_SPEED_STEPS = 8  # steps after which a machine's speed is as likely to have changed as not


class StepCosts(CallCosts):
    """Seconds of the engine's steps, by rows and requests.

    A time is divided between the curve and the request term in the expected proportion, since a
    difference may be less than the noise. The longer the machine's speed has not been measured, the
    more of an unexpected time is attributed to it, not to the size of the step.
    """

    def __init__(self, speed: Speed) -> None:
        """`speed`: the speed of the engine's machine."""
        super().__init__(speed)
        # mean number of requests after the first in steps of a size; keys: powers of two
        self._usual_others: dict[int, float] = {}
        self._squares = 0.0  # sum of squares of these numbers; earlier steps count less

    def _without_requests(self, size: int, others: int, seconds: float, reads: bool) -> float:
        self._explain_by_requests(size, others, seconds)
        expected = self.seconds(size, others + 1)
        return seconds * self.curve.at(size) / expected if expected > 0 else seconds

    def _observe_size(self, size: int, seconds: float) -> None:
        share = _SAME_SPEED_STEPS / (_SAME_SPEED_STEPS + self._speed.num_unmeasured)
        self._speed.follow((1 - share) * self.curve.observe(size, seconds, share))

    def _explain_by_requests(self, size: int, others: int, seconds: float) -> None:
        """Explain an unexpected time by the number of requests, as far as that is unusual.

        Steps of one size that always have the same number of requests do not show what one costs.
        """
        usual = self._usual_others.get(size.bit_length(), float(others))
        self._usual_others[size.bit_length()] = usual + SMOOTHING * (others - usual)
        self._squares = (1 - OWN_SMOOTHING) * self._squares + others * others
        if others and self.curve.is_known_near(size):
            expected = self.seconds(size, others + 1)
            error = min(seconds, expected * MAX_JUMP) - expected
            change = error * (others - usual) / self._squares / self._speed.slowness
            self._request_seconds = max(self._request_seconds + change, 0.0)


class EngineCosts(CostModel):
    """The costs of an engine and its drafters."""

    def __init__(self, drafters: Iterable[str]) -> None:
        """`drafters`: their names. They are assumed not to slow the engine down."""
        super().__init__(drafters, 0.0)
        self.verification = StepCosts(self._speed)

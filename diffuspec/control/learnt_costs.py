"""The costs of steps, learnt separately for one running request and for several."""

from __future__ import annotations

from dataclasses import dataclass, field

from diffuspec.control.cost_curve import SMOOTHING, CostCurve

_NEARLY_PLAIN = 1.5  # with fewer rows per request, a batch counts as one without drafts


@dataclass(slots=True)
class LearntCosts:
    """The costs that differ between one request and several.

    The same rows take longer if they belong to several, and a step with a draft waits for others.
    """

    verify: CostCurve = field(default_factory=CostCurve)  # by rows fed to the target
    plain: CostCurve = field(default_factory=CostCurve)  # by requests, of which few had drafts
    draft: CostCurve = field(default_factory=CostCurve)  # by masked positions of the batch
    overhead_seconds: float = 0.0  # of steps with drafts
    plain_overhead_seconds: float = 0.0  # of steps in batches without any

    @property
    def of_plain_batches(self) -> CostCurve:
        """Seconds by requests of a batch without drafts.

        Measured on such batches alone, once there was one: if the estimate is too low, requests
        decode without drafts and correct it; if it were too high, they never would.
        """
        return self.plain if self.plain.is_known else self.verify

    def plain_step(self, num_requests: int) -> float:
        """Return the expected seconds of a step if no request drafts, and all share a batch.

        Each request beyond the largest batch measured adds at most the cost of one row, which is
        rather too low.
        """
        number, plain = max(num_requests, 1), self.of_plain_batches
        seconds, largest = plain.at(number), plain.largest
        if number > largest > 0:
            more = self.verify.at(number) - self.verify.at(largest)
            seconds = min(seconds, plain.at(largest) + more)
        return seconds + self.plain_overhead_seconds

    def verifying(self, num_rows: int, num_requests: int) -> float:
        """Return the expected seconds of a verification.

        Rows of many requests cost more than those of few, and `verify` may know only few.
        """
        return max(self.verify.at(num_rows), self.plain.at(num_requests))

    def forget_verifying(self) -> None:
        """Forget what verifications cost."""
        self.verify, self.plain = CostCurve(), CostCurve()

    def observe_verify(self, num_rows: int, num_requests: int, seconds: float) -> None:
        """Learn from one verified batch and the time it takes with no drafting beside it."""
        self.verify.observe(num_rows, seconds)
        if num_rows < _NEARLY_PLAIN * num_requests:
            more = self.verify.at(num_rows) - self.verify.at(num_requests)
            self.plain.observe(num_requests, max(seconds - more, 0.0))

    def observe_overhead(self, seconds: float) -> None:
        """Learn from a step with a draft: its time that is neither drafting nor verification."""
        self.overhead_seconds += SMOOTHING * (seconds - self.overhead_seconds)

    def observe_plain_overhead(self, seconds: float) -> None:
        """Learn from a step in a batch without drafts: its time that is not verification."""
        self.plain_overhead_seconds += SMOOTHING * (seconds - self.plain_overhead_seconds)

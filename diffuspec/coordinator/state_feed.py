"""The target's hidden states on their way from the verifier to a drafter in another process."""

from __future__ import annotations

from diffuspec.core.types import StateRows, StatesWanted, joined_states

_MAX_BYTES = 1 << 26  # waiting to be sent, of one request: more are dropped, and read again later


class StateFeed:
    """The hidden states that one request's drafter has, and those that wait to be sent to it.

    A drafter says with each draft which states it lacks. They are asked of the verifier from then
    on, and sent with the next draft requests. A drafter that has lost some says so, too: then the
    target reads these tokens again.
    """

    def __init__(self) -> None:
        self._layers: tuple[int, ...] = ()  # wanted; none: the drafter does not read states
        self._known = 0  # prefix tokens whose states the drafter has, or had when it last answered
        self._waiting: list[StateRows] = []  # of successive tokens, from `_known` on
        self._num_sent = 0  # of the waiting ones, with the draft request under way

    @property
    def wanted(self) -> StatesWanted | None:
        """What to ask of the verifier."""
        return StatesWanted(self._layers, self._end) if self._layers else None

    @property
    def _end(self) -> int:
        return self._waiting[-1].end if self._waiting else self._known

    def expect(self, layers: tuple[int, ...]) -> None:
        """Ask for states of these layers at once: the drafter wanted them of other requests."""
        self._layers = self._layers or layers

    def take(self, states: StateRows | None) -> None:
        """Keep the states that came with a verdict."""
        if states is None or states.first != self._end or not self._layers:
            return
        self._waiting.append(states)
        if sum(len(one.data) for one in self._waiting) > _MAX_BYTES:
            self._layers, self._waiting = (), []

    def to_send(self, max_bytes: int) -> StateRows | None:
        """Return what goes with the coming draft request: the first rows that wait, or all."""
        states = joined_states(self._waiting)
        if states is None:
            self._num_sent = 0
            return None
        head, tail = states.cut(max_bytes)
        self._waiting = [head, tail] if tail.dims[0] else [head]
        self._num_sent = 1
        return head

    def answered(self, wanted: StatesWanted | None) -> int | None:
        """Note which states a draft said are lacking.

        Returns the first prefix token to be read again, if the drafter has lost states.
        """
        sent, self._num_sent = self._num_sent, 0
        if wanted is None:
            self._layers, self._waiting, self._known = (), [], 0
            return None
        expected = self._waiting[sent - 1].end if sent else self._known
        is_new, self._layers = wanted.layers != self._layers, wanted.layers
        self._known = wanted.first
        if wanted.first == expected and not is_new:
            del self._waiting[:sent]
            return None
        self._waiting = []
        return wanted.first

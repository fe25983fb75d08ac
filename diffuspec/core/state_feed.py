"""The target's hidden states on their way from the verifier to a drafter in another process."""

from __future__ import annotations

from diffuspec.core.states import StateRows, StatesWanted, joined_states

_MAX_STATE_BYTES = 1 << 26  # 64 MiB; when more are waiting for one request, they are dropped


class StateFeed:
    """The hidden states that one request's drafter has, and those waiting to be sent to it.

    With each draft, a drafter says which states it lacks. The verifier is then asked for them, and
    they are sent with the next draft requests. If the drafter has lost states, the target reads
    their tokens again.
    """

    def __init__(self) -> None:
        # wanted layers; empty if the drafter does not read states
        self._layers: tuple[int, ...] = ()
        self._known = 0  # prefix tokens whose states the drafter had in its latest reply
        self._waiting: list[StateRows] = []  # states of successive tokens, starting at `_known`
        self._num_sent = 0  # number of items of _waiting sent with the current draft request

    @property
    def wanted(self) -> StatesWanted | None:
        """The states to request from the verifier; None: none."""
        return StatesWanted(self._layers, self._end) if self._layers else None

    @property
    def _end(self) -> int:
        return self._waiting[-1].end if self._waiting else self._known

    def expect(self, layers: tuple[int, ...]) -> None:
        """Request states of these layers from the start, as the drafter did for other requests."""
        self._layers = self._layers or layers

    def take(self, states: StateRows | None) -> None:
        """Store the states that came with a verdict."""
        if states is None or states.first != self._end or not self._layers:
            return
        self._waiting.append(states)
        if sum(len(one.data) for one in self._waiting) > _MAX_STATE_BYTES:
            self._layers, self._waiting, self._num_sent = (), [], 0

    def to_send(self, max_bytes: int) -> StateRows | None:
        """Return the states for the next draft request: the first waiting rows that fit."""
        states = joined_states(self._waiting)
        if states is None:
            self._num_sent = 0
            return None
        head, tail = states.cut(max_bytes)
        self._waiting = [head, tail] if tail.dims[0] else [head]
        self._num_sent = 1
        return head

    def answered(self, wanted: StatesWanted | None) -> int | None:
        """Record which states the drafter lacks, according to its draft.

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

"""A pool of drafters: many coordinators may share some, and one may use several."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import count

from diffuspec.breaker import Breaker
from diffuspec.errors import DrafterError
from diffuspec.interfaces import Drafter
from diffuspec.types import EMPTY_DRAFT, Draft, DraftRequest

logger = logging.getLogger(__name__)


class _Member:
    def __init__(self, drafter: Drafter, number: int) -> None:
        self.drafter = drafter
        self.number = number
        self.breaker = Breaker()
        self.request_ids: set[str] = set()
        self.num_positions = 0  # under way

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Raises DrafterError for whatever goes wrong, which sets the member aside."""
        size = sum(request.num_draft_tokens for request in requests)
        self.num_positions += size
        try:
            drafts = await self.drafter.draft(requests)
            if len(drafts) != len(requests):
                raise DrafterError(f"{len(drafts)} drafts for {len(requests)} requests")
        except asyncio.CancelledError:
            self.breaker.give_up_probe()
            raise
        except Exception as error:
            self.breaker.failed()
            raise DrafterError(f"drafter {self.number} failed: {error}") from error
        finally:
            self.num_positions -= size
        self.breaker.succeeded()
        return drafts


class DrafterPool:
    """A Drafter over several.

    A request stays with the member that knows its prefix; a new one goes to the member with the
    least to do. A member that fails is set aside and its requests move, in the same call; after a
    pause one batch finds out whether it is well again. DrafterError is raised when none is left.
    Members come and go while the pool is used; they bound their own calls.
    """

    def __init__(self, drafters: Iterable[Drafter] = ()) -> None:
        self._numbers = count()
        self._members: list[_Member] = []
        self._homes: dict[str, _Member] = {}
        for drafter in drafters:
            self.add(drafter)

    def add(self, drafter: Drafter) -> None:
        """Let one more draft."""
        self._members.append(_Member(drafter, next(self._numbers)))

    def remove(self, drafter: Drafter) -> None:
        """Give one up, whose requests move; what it is drafting just now still counts.

        One that is not here is fine.
        """
        self._members = [member for member in self._members if member.drafter is not drafter]

    @property
    def num_available(self) -> int:
        """How many members are not set aside."""
        return sum(member.breaker.is_closed for member in self._members)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order, made by members side by side.

        A request that was released meanwhile may have an empty one.
        """
        found: dict[int, Draft] = {}
        errors: list[DrafterError] = []
        missing = list(range(len(requests)))
        while missing:
            shares = self._share_out([(i, requests[i]) for i in missing])
            if not shares:
                raise DrafterError("no drafter of the pool is available") from (
                    errors[-1] if errors else None
                )
            errors += await self._draft_shares(requests, shares, found)
            missing = [i for i in missing if i not in found]
            missing = [i for i in missing if requests[i].request_id in self._homes]
        return [found.get(i, EMPTY_DRAFT) for i in range(len(requests))]

    async def release(self, request_id: str) -> None:
        """Forget a request, at every member that has drafted for it."""
        self._homes.pop(request_id, None)
        knowing = [member for member in self._members if request_id in member.request_ids]
        for member in knowing:
            member.request_ids.discard(request_id)
        await asyncio.gather(*(member.drafter.release(request_id) for member in knowing))

    async def _draft_shares(
        self,
        requests: Sequence[DraftRequest],
        shares: dict[_Member, list[int]],
        found: dict[int, Draft],
    ) -> list[DrafterError]:
        """Let every member draft its share; return what went wrong."""

        async def draft(member: _Member, indices: list[int]) -> DrafterError | None:
            try:
                drafts = await member.draft([requests[i] for i in indices])
            except DrafterError as error:
                logger.warning("%s", error)
                return error
            found.update(zip(indices, drafts, strict=True))
            return None

        calls = [draft(member, indices) for member, indices in shares.items()]
        # Mostly there is one, which needs no task of its own.
        errors = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        return [error for error in errors if error is not None]

    def _share_out(self, requests: Sequence[tuple[int, DraftRequest]]) -> dict[_Member, list[int]]:
        """Assign the numbered requests to members that may be asked; {} when there is none."""
        probed = next((member for member in self._members if member.breaker.take_probe()), None)
        available = [member for member in self._members if member.breaker.is_closed]
        if probed is not None:
            available.append(probed)
        if not available:
            return {}
        load = {member: member.num_positions for member in available}
        shares: dict[_Member, list[int]] = {}
        for index, request in requests:
            member = self._homes.get(request.request_id)
            if member not in load:
                member = min(available, key=lambda one: (load[one], len(one.request_ids)))
                self._homes[request.request_id] = member
            member.request_ids.add(request.request_id)
            load[member] += request.num_draft_tokens
            shares.setdefault(member, []).append(index)
        if probed is not None and probed not in shares:
            probed.breaker.give_up_probe()
        return shares

"""When a supervised thing is started, dropped and replaced."""

import asyncio
import itertools

import pytest

from actors.supervision.background import in_background
from actors.supervision.supervisor import Supervisor
from diffuspec.core.errors import DiffuspecError

pytestmark = pytest.mark.virtual_time


class Lamp:
    """Burns until it is broken."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_dropped = False


class Lamps(Supervisor[Lamp]):
    """Starts lamps, unless an error is due."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("the lamp")
        self.errors = iter(errors)
        self.attempts: list[float] = []  # when they were made
        self.drops: list[str] = []

    async def bring_up(self) -> Lamp:
        self.attempts.append(now())
        if error := next(self.errors, None):
            raise error
        return Lamp()

    async def watch(self, thing: Lamp) -> str:
        return await thing.broken

    async def drop(self, thing: Lamp | None, reason: str) -> None:
        self.drops.append(reason)
        if thing is not None:
            thing.is_dropped = True

    async def pauses(self, num_attempts: int) -> list[float]:
        """Wait for `num_attempts` attempts; return the pauses between them."""
        while len(self.attempts) < num_attempts:
            await asyncio.sleep(1)
        times = self.attempts[:num_attempts]
        return [late - early for early, late in itertools.pairwise(times)]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_start_that_fails_raises_the_error():
    lamps = Lamps(OSError("no current"))
    with pytest.raises(OSError, match="no current"):
        await lamps.start()
    assert len(lamps.attempts) == 1 and lamps.problem == "starting"


async def test_a_thing_lost_after_long_service_is_replaced_at_once():
    lamps = Lamps()
    first = await lamps.start()
    lamps.supervise()
    await asyncio.sleep(60)
    first.broken.set_result("it fell")
    await lamps.replaced(first)
    lost_at = now()
    second = await lamps.current()
    assert second is not first and now() == lost_at
    assert first.is_dropped and lamps.drops == ["it fell"] and lamps.problem == ""
    [recovery] = lamps.recoveries
    assert (recovery.reason, recovery.num_attempts, lamps.num_starts) == ("it fell", 1, 2)
    await lamps.halt()


async def test_pauses_between_failed_attempts_grow_to_a_limit():
    errors = [OSError("of the system"), RuntimeError("of Ray"), DiffuspecError("ours")]
    lamps = Lamps(*(errors * 4))
    lamps.supervise()
    await lamps.tried()
    assert lamps.problem == "of the system" and lamps.drops == ["of the system"]
    assert await lamps.pauses(9) == [0.5, 1, 2, 4, 8, 16, 30, 30]
    await lamps.current()
    assert lamps.problem == "" and not lamps.recoveries, "nothing had been lost"
    await lamps.halt()


async def test_repeated_losses_are_replaced_after_growing_pauses():
    lamps = Lamps()
    lamps.supervise()
    for _ in range(4):
        lamp = await lamps.current()
        assert lamp is not None
        lamp.broken.set_result("it flickers")
        await lamps.replaced(lamp)
    assert await lamps.pauses(5) == [0.5, 1, 2, 4]
    await lamps.halt()


async def test_a_thing_that_cannot_be_watched_or_dropped_is_replaced():
    lamps = Lamps()
    lamps.supervise()
    lamp = await lamps.current()
    assert lamp is not None
    lamps.drop = fail  # type: ignore[method-assign]
    lamp.broken.set_exception(OSError("no connection"))
    await lamps.replaced(lamp)
    assert lamps.problem == "no connection"
    assert await lamps.current() is not lamp
    await lamps.halt()


async def fail(thing: Lamp | None, reason: str) -> None:
    raise OSError("it cannot be dropped")


async def test_after_a_halt_the_thing_stays_and_after_a_close_there_is_none():
    lamps = Lamps()
    lamps.supervise()
    lamp = await lamps.current()
    await lamps.halt()
    await asyncio.sleep(60)
    assert lamps.problem == "" and await lamps.current() is lamp
    lamps.close("the lights are out")
    assert await lamps.current() is None and lamps.problem == "the lights are out"


async def test_an_error_that_ends_a_background_task_is_logged(caplog):
    await asyncio.wait([in_background(fail(None, ""), "the light")])
    await asyncio.sleep(0)
    assert "the light has ended" in caplog.text and "OSError: it cannot" in caplog.text


async def test_the_time_without_a_thing_is_counted():
    lamps = Lamps()
    await asyncio.sleep(3)
    assert lamps.seconds_out >= 3
    lamp = await lamps.start()
    assert lamps.seconds_out == 0
    lamps.supervise()
    lamp.broken.set_result("it broke")
    await lamps.replaced(lamp)
    assert lamps.seconds_out < 1
    await lamps.halt()

import pytest

from diffuspec.telemetry.busy_time import BusyTime


def test_overlapping_calls_count_once_as_busy_time():
    busy = BusyTime()
    busy.begin(1.0)
    busy.begin(2.0)
    assert busy.seconds(2.5) == pytest.approx(1.5)
    busy.end(3.0)
    busy.end(5.0)
    assert busy.seconds(9.0) == pytest.approx(4.0)
    busy.begin(9.0)
    assert busy.seconds(10.0) == pytest.approx(5.0)

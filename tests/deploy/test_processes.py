"""The processes of a service, of which any may end while they are listed."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil

from deploy.processes import listeners


def test_a_process_that_ends_while_listeners_are_listed_is_left_out(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    connections = [
        SimpleNamespace(laddr=SimpleNamespace(port=port), status=psutil.CONN_LISTEN, pid=pid)
        for port, pid in [(80, ended.pid), (80, os.getpid()), (81, os.getpid()), (80, None)]
    ]
    monkeypatch.setattr(psutil, "net_connections", lambda kind: connections)
    assert [one.pid for one in listeners(80)] == [os.getpid()]

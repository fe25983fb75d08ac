"""Ports that are reserved for one use."""

import contextlib
import socket

from deploy.ports import reserved_port


def test_a_reserved_port_is_given_once_although_nothing_listens_there_yet():
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(50)]
        assert len(set(ports)) == len(ports)
        for _ in range(2):
            socket.create_server(("127.0.0.1", ports[0])).close()

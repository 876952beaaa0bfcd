"""Ports on loopback, for tests of processes that share them."""

import socket

from holdfast.config.fleet_file import Address

LOOPBACK = Address("127.0.0.1", 0)


def port_of(sockets):
    return sockets[0].getsockname()[1]


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)

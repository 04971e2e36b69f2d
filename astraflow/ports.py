"""Where servers of our own listen: free ports, and how other machines call a host.

Invariant: no port is among those that the kernel gives to outgoing connections. One of those could be taken by a client
before the server listens, or while it is down: even by the connection that looks for the server, which then reaches
itself and keeps the port (TCP allows it).
"""

import errno
import secrets
import socket
from pathlib import Path

_WILDCARDS = ("", "0.0.0.0", "::")  # every address of this machine
TRIES = 50
_FIRST_PORT = 10_000
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OUTGOING_PORT = 32_768  # where the system doesn't say


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at this moment. Raises OSError: not an address of ours, or no port is free."""
    for attempt in range(TRIES):
        port = _FIRST_PORT + secrets.randbelow(_first_outgoing_port() - _FIRST_PORT)
        try:
            with listening(host, port):
                return port
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or attempt == TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def host_for_others(host: str) -> str:
    """How other machines call the one that listens on `host`: its name, if it listens everywhere."""
    return socket.getfqdn() if host in _WILDCARDS else host


def host_port(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _first_outgoing_port() -> int:
    try:
        first = int(_OUTGOING_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        return _FIRST_OUTGOING_PORT
    return first if first > _FIRST_PORT else _FIRST_OUTGOING_PORT

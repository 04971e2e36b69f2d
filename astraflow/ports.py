"""Ports for servers that we start."""

import socket


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])

"""Addresses as a run file writes them, and as others see them."""

import ipaddress
import socket

WILDCARDS = ("", "0.0.0.0", "::")  # listen on every address of this machine


def host_and_port(text: str) -> tuple[str, int]:
    """HOST:PORT, port 0 allowed. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not like HOST:PORT")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_for_others(host: str) -> str:
    """How other machines call the one that listens on `host`: its name, if it listens everywhere."""
    return socket.getfqdn() if host in WILDCARDS else host

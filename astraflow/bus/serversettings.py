"""The settings file of a nats-server of our own, and what a server's own words say of why it didn't start.

Pure: whoever starts the server writes the one and reads the other. Invariant: whatever stands in a path, a token or a
name is one value to nats-server.
"""

import re
from pathlib import Path

from astraflow.ports import host_port

_NO_STORE_BOUND = 1 << 50  # streams reserve their bounds, which a small disk may never come to
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LOGGED = re.compile(r"^\[\d+\] \S+ \S+ \[(\w+)\] ")  # process, date, time, level

_TEMPLATE = """\
# written by astraflow; changes are lost
listen: {listen}
server_name: {name}
{security}
{links}
jetstream {{
  {domain}
  store_dir: {store}
  sync_interval: always
  max_file_store: {max_store_bytes}
}}
log_file: {log}
pid_file: {pid}
max_payload: 1048576
max_pending: 268435456
ping_interval: "10s"
ping_max: 2
write_deadline: "10s"
"""


def quoted(text: str) -> str:
    """A value of nats-server's settings."""
    return '"' + "".join(_ESCAPES.get(c, c) for c in text) + '"'


def settings(
    folder: Path, *, host: str, port: int, name: str, security: str, links: str, domain: str, max_store_bytes: int
) -> str:
    """The whole file of a server whose files are in `folder`, an absolute path.

    Args:
        security, links: lines of settings.
        domain: JetStream's; "" = none.
        max_store_bytes: 0 = the disk.
    """
    return _TEMPLATE.format(
        listen=quoted(host_port(host, port)),
        name=quoted(name),
        security=security,
        links=links,
        domain=f"domain: {quoted(domain)}" if domain else "",
        store=quoted(str(folder / "store")),
        max_store_bytes=max_store_bytes or _NO_STORE_BOUND,
        log=quoted(str(folder / "nats-server.log")),
        pid=quoted(str(folder / "pid")),
    )


def why_not_started(said: str, *, host: str, port: int, folder: Path) -> str:
    """A sentence of what a server that ended said on its way; "" if it says nothing that is known."""
    leafs = re.search(r"listening on leafnode port: (.*)", said)
    if leafs:
        return f"nats-server can't take leaf servers on port {leafs[1].strip()}; choose another --leaf-listen"
    if "cannot assign requested address" in said:
        return f"{host} is no address of this machine (`ip address` lists them); listen on one, or on 0.0.0.0 for all"
    if re.search(r"listen tcp: lookup |name or service not known|name resolution", said, re.IGNORECASE):
        return f"the name {host} has no address; listen on an address of this machine, or on 0.0.0.0 for all"
    if "bind: permission denied" in said:
        return f"port {port} on {host} is not for this user: ports below 1024 are the system's; choose another"
    if "address family not supported" in said:
        return f"{host} can't be listened on: this machine has no such kind of address; listen on another"
    if "no space left" in said.lower():
        return f"nats-server can't start: the disk of {folder} is full; free some space"
    return ""


def last_words(said: str) -> str:
    """Of a server's log, the lines that tell of a fault, else the last one, without dates."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    faults = [line for line in lines if not (found := _LOGGED.match(line)) or found[1] in ("FTL", "ERR")]
    return "; ".join(_LOGGED.sub("", line) for line in (faults or lines)[-3:])

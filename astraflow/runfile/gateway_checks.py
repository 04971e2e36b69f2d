"""What a run file says about environments that are played over HTTP, and about the gateway.

It starts nothing and listens nowhere; that a port is free shows when a rollout process opens it.
"""

import shlex
from collections.abc import Iterator

from astraflow.config import RunConfig, host_and_port, is_loopback
from astraflow.errors import ConfigError
from astraflow.paths import user_path
from astraflow.runfile.decode import Where


def check_gateway(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    """Commands that can be started, and keys that don't travel in the open."""
    for name, env in config.envs.items():
        if env.command and env.agent:
            yield where.error(("envs", name, "command"), f"agent = {env.agent!r} plays it too; keep one of them")
        try:
            empty = bool(env.command) and not shlex.split(env.command)
        except ValueError as exc:
            yield where.error(("envs", name, "command"), f"can't be split into words: {exc}")
        else:
            if empty:
                yield where.error(("envs", name, "command"), "has no program in it")
        if env.by_http and config.run.deterministic:
            key = "command" if env.command else "agent"
            yield where.error(("envs", name, key), "programs of their own answer in any order, not deterministically")
    gateway = config.gateway
    try:
        host, _ = host_and_port(gateway.listen)
    except ValueError as exc:
        yield where.error(("gateway", "listen"), str(exc))
        return
    if bool(gateway.tls_certificate) != bool(gateway.tls_key):
        yield where.error(("gateway", "tls_certificate"), "belongs together with tls_key; give both or none")
    elif not gateway.tls_certificate and not is_loopback(host):
        yield where.error(
            ("gateway", "listen"),
            f"others can reach {host}, and keys would travel in the open; set gateway.tls_certificate and "
            "gateway.tls_key, or listen on 127.0.0.1",
        )
    for key in ("key_file", "tls_certificate", "tls_key"):
        if (file := getattr(gateway, key)) and not user_path(file).is_file():
            yield where.error(("gateway", key), f"file {file} does not exist")

"""What the keys of [policies.<name>.weights] mean together. Each check yields ConfigErrors that say how to fix it."""

import importlib.util
from collections.abc import Iterator

from astraflow.config import PolicySection, host_and_port, is_loopback
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.paths import user_path
from astraflow.runfile.decode import Where

_USED_BY = {"folder": ("file", "http"), "full_on_nats": ("file",), "listen": ("http",), "advertise": ("http",)}


def check_transport(name: str, policy: PolicySection, where: Where) -> Iterator[ConfigError]:
    """Whether fulls can travel as the table says."""
    section, above = policy.weights, ("policies", name, "weights")
    transport = section.full_transport
    for key, transports in _USED_BY.items():
        if transport not in transports and getattr(section, key) != getattr(type(section)(), key):
            wanted = " or ".join(f'"{each}"' for each in transports)
            yield where.error((*above, key), f'is for full_transport = {wanted}, and that is "{transport}"')
    if transport == "http" and policy.trainer is None:
        yield where.error(
            (*above, "full_transport"),
            'the policy is never trained: what publishes it ends at once and can\'t serve it; use "file" or "nats"',
        )
    if transport == "file":
        yield from _check_folder(section.folder, (*above, "folder"), where)
    if transport == "http":
        yield from _check_listen(section.listen, (*above, "listen"), where)


def _check_folder(folder: str, path: tuple[str, ...], where: Where) -> Iterator[ConfigError]:
    if not user_path(folder).is_absolute():
        yield where.error(path, f"is {folder!r}, expected the absolute path of a folder that every machine has")
    elif not user_path(folder).is_dir():
        yield where.error(path, f"{folder} is not a folder here; is it mounted?")


def _check_listen(listen: str, path: tuple[str, ...], where: Where) -> Iterator[ConfigError]:
    try:
        host, _ = host_and_port(listen)
    except ValueError as exc:
        yield where.error(path, f"{exc}; e.g. 10.0.0.5:0 for any free port there")
        return
    if not is_loopback(host) and importlib.util.find_spec("cryptography") is None:
        yield where.error(
            path,
            f"{host} is not a loopback address, so weights need TLS there, and that the cryptography package: "
            f"{install_hint('secure')}",
        )

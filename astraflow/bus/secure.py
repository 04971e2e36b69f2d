"""The folder of a secured server: certificates, a key for every role of every run, and nats-server's settings for them.

    DIR/  ca.pem ca.key server.pem server.key   accounts.conf (no secret in it)
          credentials/<run>/<role>.nk ca.pem   credentials/<run>/nodes/<node>/<role>.nk ca.pem

Roles prove themselves by an Ed25519 key (NATS "nkey"): the server knows only the public half. What each may do is in
`rights.py`. Invariant: keys that are there are kept, so that a second call changes nothing and a new run is only added.
"""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.bus.certificates import make_certificates
from astraflow.bus.names import check_name
from astraflow.bus.private import write_private
from astraflow.bus.rights import BOUND, between, news_of, rights_of, services_of
from astraflow.bus.serversettings import quoted
from astraflow.bus.topology import Topology
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.messages.roles import Role

RUN_FILE = "run"  # in a folder of credentials: whose they are
_ACCOUNTS_FILE = "accounts.conf"
NODES = "nodes"  # in a run's folder of credentials: a folder for each node that has keys of its own


@dataclass(frozen=True, kw_only=True)
class SecureFolder:
    """A prepared folder. `credentials`: per run, the folder to take role files from."""

    path: Path
    ca_file: Path
    credentials: Mapping[str, Path]

    @property
    def settings(self) -> str:
        """Lines of nats-server's settings: TLS, and the accounts file beside them."""
        at = self.path.resolve()
        return (
            f"tls {{ cert_file: {quoted(f'{at}/server.pem')}, key_file: {quoted(f'{at}/server.key')}, timeout: 5 }}\n"
            f'include "{_ACCOUNTS_FILE}"'
        )


def prepare(
    folder: Path, *, runs: Sequence[str], region: str, names: Sequence[str], nodes: Sequence[str] = ()
) -> SecureFolder:
    """Make what is missing. `names` are host names and addresses that clients use for this server. `nodes` get keys of
    their own in each of the runs, so that no node can hear or give another's answers.

    Runs and nodes that were prepared earlier stay. Raises ConfigError: a name, a missing package, or a file that can't
    be used.
    """
    wanted = [Topology(run=run, region=region, envs=(), policies=()) for run in runs]
    try:
        credentials = folder / "credentials"
        credentials.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_certificates(folder, names)
        for topology in wanted:
            _settle_run(credentials / topology.run, topology, folder / "ca.pem", nodes)
        every = [_topology_of(path) for path in sorted(credentials.iterdir()) if (path / "region").exists()]
        text = _accounts_text({topology: _public_keys(credentials / topology.run) for topology in every})
        (folder / _ACCOUNTS_FILE).write_text(text)
    except OSError as exc:
        raise ConfigError(f"{folder} can't be used: {exc}") from exc
    return SecureFolder(
        path=folder,
        ca_file=folder / "ca.pem",
        credentials={topology.run: credentials / topology.run for topology in every},
    )


def _accounts_text(runs: Mapping[Topology, Mapping[Role, Sequence[str]]]) -> str:
    """nats-server's accounts, users and rights: per run one account with JetStream and one for each role.

    Args: public keys by role, by run.
    """
    blocks = [_account_block(topology, keys) for topology, keys in runs.items()]
    return "\n".join(["# written by astraflow bus --secure; changes are lost", "accounts {", *blocks, "}"]) + "\n"


def _account_block(names: Topology, keys: Mapping[Role, Sequence[str]]) -> str:
    services, news = {role: services_of(role, names) for role in BOUND}, news_of(names)
    every = dict.fromkeys(subject for allowed in services.values() for subject in allowed)
    exports = [
        f'{{ service: "{subject}", response: stream, accounts: [{_accounts(users, names)}] }}'
        for subject in every
        if (users := [role for role in BOUND if subject in services[role]])
    ]
    blocks = [
        f"  {_account(Role.ADMIN, names)} {{",
        "    jetstream: enabled",
        *_lines("users", [_user(Role.ADMIN, key, names) for key in keys[Role.ADMIN]]),
        *_lines("exports", [*exports, f'{{ stream: "{news}", accounts: [{_accounts(BOUND, names)}] }}']),
        "  }",
    ]
    for role in BOUND:
        sends = [(reader, pattern) for writer, reader, pattern in between(names) if writer is role]
        hears = [(writer, pattern) for writer, reader, pattern in between(names) if reader is role]
        home = _account(Role.ADMIN, names)
        imports = [
            *(f'{{ service: {{ account: "{home}", subject: "{subject}" }} }}' for subject in services[role]),
            f'{{ stream: {{ account: "{home}", subject: "{news}" }} }}',
            *(f'{{ stream: {{ account: "{_account(writer, names)}", subject: "{p}" }} }}' for writer, p in hears),
        ]
        blocks += [
            f"  {_account(role, names)} {{",
            *_lines("users", [_user(role, key, names) for key in keys[role]]),
            *_lines(
                "exports", [f'{{ stream: "{p}", accounts: [{_accounts([reader], names)}] }}' for reader, p in sends]
            ),
            *_lines("imports", imports),
            "  }",
        ]
    return "\n".join(blocks)


def _account(role: Role, names: Topology) -> str:
    """An account of a run: the run's own is admin's."""
    return f"RUN_{names.run}" if role is Role.ADMIN else f"{role.upper()}_{names.run}"


def _accounts(roles: Sequence[Role], names: Topology) -> str:
    return ", ".join(f'"{_account(role, names)}"' for role in roles)


def _lines(key: str, items: Sequence[str]) -> list[str]:
    return [f"    {key}: [", *(f"      {item}" for item in items), "    ]"]


def _user(role: Role, public_key: str, names: Topology) -> str:
    rights = rights_of(role, names, key=public_key)
    if rights is None:
        return f"{{ nkey: {public_key} }} # {role}"
    publish, subscribe = (", ".join(f'"{s}"' for s in allowed) for allowed in (rights.publish, rights.subscribe))
    permissions = f"{{ publish: {{ allow: [{publish}] }}, subscribe: {{ allow: [{subscribe}] }} }}"
    return f"{{ nkey: {public_key}, permissions: {permissions} }} # {role}"


def _settle_run(folder: Path, topology: Topology, ca_file: Path, nodes: Sequence[str]) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    remembered = folder / "region"
    if remembered.exists() and remembered.read_text().strip() != topology.region:
        raise ConfigError(
            f"{folder} is for region {remembered.read_text().strip()!r}, not {topology.region!r}: the rights hold the "
            f"names of that region's streams; move {folder} away to get new credentials"
        )
    remembered.write_text(topology.region + "\n")
    _settle_keys(folder, topology, ca_file, Role.with_a_key())
    for node in nodes:
        own = folder / NODES / check_name(node, "node")
        own.mkdir(exist_ok=True, mode=0o700, parents=True)
        _settle_keys(own, topology, ca_file, BOUND)


def _settle_keys(folder: Path, topology: Topology, ca_file: Path, roles: Sequence[Role]) -> None:
    (folder / RUN_FILE).write_text(topology.run + "\n")  # it goes with the keys when the folder is copied
    shutil.copyfile(ca_file, folder / "ca.pem")
    for role in roles:
        if not (path := credentials_file(folder, role)).exists():
            write_private(path, _new_seed() + "\n")


def credentials_file(folder: Path, role: Role) -> Path:
    """Where a role's key is."""
    return folder / f"{role}.nk"


def _topology_of(folder: Path) -> Topology:
    return Topology(run=folder.name, region=(folder / "region").read_text().strip(), envs=(), policies=())


def _public_keys(folder: Path) -> dict[Role, list[str]]:
    places = [folder, *sorted((folder / NODES).glob("*"))]
    files = {role: [credentials_file(place, role) for place in places] for role in Role.with_a_key()}
    return {role: [public_key(file) for file in found if file.exists()] for role, found in files.items()}


def _new_seed() -> str:
    try:
        import nkeys
    except ImportError as exc:
        raise ConfigError(f"role credentials need the nkeys package: {install_hint('secure')}") from exc
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed_file: Path) -> str:
    """The public half of a key file. Raises ConfigError for a file that isn't one."""
    try:
        import nkeys
    except ImportError as exc:
        raise ConfigError(f"role credentials need the nkeys package: {install_hint('secure')}") from exc
    try:
        key: str = nkeys.from_seed(bytearray(seed_file.read_bytes().strip())).public_key.decode()
    except (nkeys.NkeysError, ValueError) as exc:
        raise ConfigError(f"{seed_file} isn't a NATS key; move it away to get a new one") from exc
    return key

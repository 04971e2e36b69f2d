"""The folder of a secured server: certificates, a key for every role of every run, and nats-server's settings for them.

    DIR/  ca.pem ca.key server.pem server.key   accounts.conf (no secret in it)   credentials/<run>/<role>.nk ca.pem

Roles prove themselves by an Ed25519 key (NATS "nkey"): the server knows only the public half. What each may do is in
`rights.py`. Invariant: keys that are there are kept, so that a second call changes nothing and a new run is only added.
"""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.bus.certificates import INSTALL, make_certificates
from astraflow.bus.private import write_private
from astraflow.bus.rights import GUESTS, guest_services, news_of, rights_of
from astraflow.bus.topology import Topology
from astraflow.errors import ConfigError
from astraflow.messages.roles import Role

RUN_FILE = "run"  # in a folder of credentials: whose they are
ACCOUNTS_FILE = "accounts.conf"


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
            f'tls {{ cert_file: "{at}/server.pem", key_file: "{at}/server.key", timeout: 5 }}\n'
            f'include "{ACCOUNTS_FILE}"'
        )


def prepare(folder: Path, *, runs: Sequence[str], region: str, names: Sequence[str]) -> SecureFolder:
    """Make what is missing. `names` are host names and addresses that clients use for this server.

    Runs that were prepared earlier stay. Raises ConfigError: a name, a missing package, or a file that can't be used.
    """
    wanted = [Topology(run=run, region=region, envs=(), policies=()) for run in runs]
    try:
        credentials = folder / "credentials"
        credentials.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_certificates(folder, names)
        for topology in wanted:
            _settle_run(credentials / topology.run, topology, folder / "ca.pem")
        every = [_topology_of(path) for path in sorted(credentials.iterdir()) if (path / "region").exists()]
        text = accounts_text({topology: _public_keys(credentials / topology.run) for topology in every})
        (folder / ACCOUNTS_FILE).write_text(text)
    except OSError as exc:
        raise ConfigError(f"{folder} can't be used: {exc}") from exc
    return SecureFolder(
        path=folder,
        ca_file=folder / "ca.pem",
        credentials={topology.run: credentials / topology.run for topology in every},
    )


def accounts_text(runs: Mapping[Topology, Mapping[Role, str]]) -> str:
    """nats-server's accounts, users and rights: per run one account with JetStream and one for its guests.

    Args: public keys by role, by run.
    """
    blocks = [_account_block(topology, keys) for topology, keys in runs.items()]
    return "\n".join(["# written by astraflow bus --secure; changes are lost", "accounts {", *blocks, "}"]) + "\n"


def _account_block(names: Topology, keys: Mapping[Role, str]) -> str:
    own, guests = f"RUN_{names.run}", f"GUESTS_{names.run}"
    insiders = [role for role in Role.with_a_key() if role not in GUESTS]
    services, news = guest_services(names), news_of(names)
    return "\n".join(
        [
            f"  {own} {{",
            "    jetstream: enabled",
            *_lines("users", [_user(role, keys[role], names) for role in insiders]),
            *_lines(
                "exports",
                [f'{{ service: "{s}", response: stream, accounts: ["{guests}"] }}' for s in services]
                + [f'{{ stream: "{news}", accounts: ["{guests}"] }}'],
            ),
            "  }",
            f"  {guests} {{",
            *_lines("users", [_user(role, keys[role], names) for role in GUESTS]),
            *_lines(
                "imports",
                [f'{{ service: {{ account: "{own}", subject: "{s}" }} }}' for s in services]
                + [f'{{ stream: {{ account: "{own}", subject: "{news}" }} }}'],
            ),
            "  }",
        ]
    )


def _lines(key: str, items: Sequence[str]) -> list[str]:
    return [f"    {key}: [", *(f"      {item}" for item in items), "    ]"]


def _user(role: Role, public_key: str, names: Topology) -> str:
    rights = rights_of(role, names, key=public_key)
    if rights is None:
        return f"{{ nkey: {public_key} }} # {role}"
    publish, subscribe = (", ".join(f'"{s}"' for s in allowed) for allowed in (rights.publish, rights.subscribe))
    permissions = f"{{ publish: {{ allow: [{publish}] }}, subscribe: {{ allow: [{subscribe}] }} }}"
    return f"{{ nkey: {public_key}, permissions: {permissions} }} # {role}"


def _settle_run(folder: Path, topology: Topology, ca_file: Path) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    remembered = folder / "region"
    if remembered.exists() and remembered.read_text().strip() != topology.region:
        raise ConfigError(
            f"{folder} is for region {remembered.read_text().strip()!r}, not {topology.region!r}: the rights hold the "
            f"names of that region's streams; move {folder} away to get new credentials"
        )
    remembered.write_text(topology.region + "\n")
    (folder / RUN_FILE).write_text(topology.run + "\n")  # it goes with the keys when the folder is copied
    shutil.copyfile(ca_file, folder / "ca.pem")
    for role in Role.with_a_key():
        if not (path := credentials_file(folder, role)).exists():
            write_private(path, _new_seed() + "\n")


def credentials_file(folder: Path, role: Role) -> Path:
    """Where a role's key is."""
    return folder / f"{role}.nk"


def _topology_of(folder: Path) -> Topology:
    return Topology(run=folder.name, region=(folder / "region").read_text().strip(), envs=(), policies=())


def _public_keys(folder: Path) -> dict[Role, str]:
    return {role: public_key(credentials_file(folder, role)) for role in Role.with_a_key()}


def _new_seed() -> str:
    try:
        import nkeys
    except ImportError as exc:
        raise ConfigError(f"role credentials need the nkeys package; {INSTALL}") from exc
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed_file: Path) -> str:
    """The public half of a key file. Raises ConfigError for a file that isn't one."""
    try:
        import nkeys
    except ImportError as exc:
        raise ConfigError(f"role credentials need the nkeys package; {INSTALL}") from exc
    try:
        key: str = nkeys.from_seed(bytearray(seed_file.read_bytes().strip())).public_key.decode()
    except (nkeys.NkeysError, ValueError) as exc:
        raise ConfigError(f"{seed_file} isn't a NATS key; move it away to get a new one") from exc
    return key

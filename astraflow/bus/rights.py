"""What each role may do on a secured server, as subjects of the NATS protocol: derived from the wiring.

Pure. Two classes of keys: `dataflow`, `trainer` and `admin` hold the run's truth and work in the run's own account.
The other roles are guests in a second account that is joined to the first by a few service imports. That border is
needed because nats-server doesn't check the *reply* subject of a request: in one account, a rollout could have the
server "answer" into the weights. A guest's answers stay on the guests' side. Nobody but `admin` may make a consumer,
because the server delivers to whatever subject its maker names: reading needs none, and those of the queues are there.
What is stored in a run is open to all of its keys. Invariant: a guest can store nothing but what the wiring says that
its role writes, and can't hear or give the answers of another key.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.bus.names import ANY, INBOX, Names
from astraflow.bus.wiring import FAMILIES, Limits, Row, core_subjects, home_rows
from astraflow.messages.roles import Role

API = "$JS.API"
GUESTS = tuple(role for role in Role.with_a_key() if role.is_guest)


@dataclass(frozen=True, kw_only=True)
class Rights:
    """Subjects, with NATS wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def rights_of(role: Role, names: Names, *, key: str) -> Rights | None:
    """What a role's key may do in a run; None = everything. `key`: its public half, of which its inbox has the name."""
    if role is Role.ADMIN:
        return None
    cores = core_subjects(names)
    sent = [core.pattern for core in cores if _has(role, core.writers)]
    heard = [core.pattern for core in cores if _has(role, core.readers)]
    inbox = f"{INBOX}.{key}.>"
    publish = (inbox, *_looks(), *_requests(role, names), *_stored(role, names), *sent)
    return Rights(publish=tuple(dict.fromkeys(publish)), subscribe=(inbox, news_of(names), *heard))


def news_of(names: Names) -> str:
    """What every key hears, on both sides of the border."""
    return f"{names.root}.news.>"


def guest_services(names: Names) -> tuple[str, ...]:
    """What passes the border from the guests' account into the run's: all that any guest may store, and requests."""
    stored = {subject for role in GUESTS for subject in _stored(role, names)}
    return (f"{API}.>", "$JS.ACK.>", *sorted(stored))


def _rows(names: Names) -> tuple[Row, ...]:
    return home_rows(names, Limits(), (ANY,), (ANY,))


def _has(key: Role, roles: Iterable[Role]) -> bool:
    """Whether a key serves one of these roles. Regions join by their hub's token, not by a key."""
    return any(role.key is key for role in roles if role is not Role.REGION)


def _looks() -> tuple[str, ...]:
    """Look what is there, one message at a time."""
    return (
        f"{API}.STREAM.INFO.*",
        f"{API}.CONSUMER.INFO.*.*",
        f"{API}.STREAM.MSG.GET.*",
        f"{API}.DIRECT.GET.>",
        f"{API}.STREAM.NAMES",
    )


def _stored(role: Role, names: Names) -> list[str]:
    """What it may store."""
    rows = [pattern for row in _rows(names) if _has(role, row.writers) for pattern in (*row.subjects, *row.parts)]
    keys = [names.kv_pattern(family.pattern) for family in FAMILIES if _has(role, family.writers)]
    return [*rows, *keys]


def _requests(role: Role, names: Names) -> list[str]:
    """What it may ask the server to do: take, ack, purge."""
    found = []
    for row in _rows(names):
        stream = ANY if row.policy else row.stream  # names of streams are one token: policies can't be told apart
        if _has(role, row.purgers):
            found.append(f"{API}.STREAM.PURGE.{stream}")
        if row.queue and _has(role, row.readers):  # the shared consumers themselves are made by `up`
            found += [f"{API}.CONSUMER.MSG.NEXT.{stream}.*", f"$JS.ACK.{stream}.>"]
    return found

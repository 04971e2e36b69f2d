"""What each role may do on a secured server, as subjects of the NATS protocol: derived from the wiring.

Pure. `admin` works in the run's own account, where its streams are. Every other key is in an account of its role, which
is joined to that one by service imports of just what the role may ask and store. That border is needed because
nats-server doesn't check the *reply* subject of a request: in one account, a rollout could have the server "answer"
into the weights; in its role's own, an answer reaches nothing that it couldn't write itself. Nobody but `admin` may
make a consumer, because the server delivers to whatever subject its maker names: reading needs none, and those of the
queues are there. What is stored in a run is open to all of its keys. Invariant: a key can store nothing but what the
wiring says that its role writes, and can't hear or give the answers of another key.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from astraflow.bus.names import ANY, INBOX, Names
from astraflow.bus.wiring import FAMILIES, Limits, Row, core_subjects, home_rows
from astraflow.messages.roles import Role

API = "$JS.API"
BOUND = tuple(role for role in Role.with_a_key() if role is not Role.ADMIN)  # by rights


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


def services_of(role: Role, names: Names) -> tuple[str, ...]:
    """What passes the border from a role's account into the run's, answers of the server that name it included.

    The whole API, or an account's own would answer too; it takes no answer for a request, and each user's rights say
    what may be asked.
    """
    asked = [subject for subject in _requests(role, names) if not subject.startswith(API)]
    return tuple(dict.fromkeys((f"{API}.>", *asked, *_stored(role, names))))


def between(names: Names) -> tuple[tuple[Role, Role, str], ...]:
    """What isn't stored: from which role's account to which."""
    return tuple(
        (writer, reader, core.pattern)
        for core in core_subjects(names)
        for writer in BOUND
        for reader in BOUND
        if _has(writer, core.writers) and _has(reader, core.readers)
    )


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

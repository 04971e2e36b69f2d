"""The table: it is the only place of keys and subjects, its page is current, and a secured server obeys it."""

import ast
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from astraflow.bus import Kind, Topology
from astraflow.bus.docs import page
from astraflow.bus.names import ANY
from astraflow.bus.rights import API
from astraflow.bus.session import Session
from astraflow.bus.wiring import FAMILIES, Row, core_subjects, family_of
from astraflow.errors import DeniedError, NoAnswerError
from astraflow.messages import MESSAGE_TYPES
from astraflow.messages.roles import Role
from tests.bus.secured import Secured, secured_server

ROOT = Path(__file__).parents[2]
OWN = {"names.py", "wiring.py"}  # of the package bus
SERVERS = {"rights.py", "link.py", "session.py", "ensure.py", "feed.py"}  # $JS and _INBOX are the server's names
KV_METHODS = {"get", "put", "delete", "watch", "entries"}


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/wiring.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_message_travels_somewhere() -> None:
    topology = Topology(run="r", region="here", envs=["e"], policies=["p"])
    stored = {kind for row in topology.rows for kind in row.messages}
    sent = {kind for core in core_subjects(topology) for kind in core.messages}
    assert stored | sent == set(MESSAGE_TYPES.values())


def test_keys_are_made_and_known_by_their_family() -> None:
    for family in FAMILIES:
        key = family.key(*(f"t{number}" for number, _ in enumerate(family.tokens)))
        assert family_of(key) is family
        assert key.startswith(family.prefix)
    assert family_of("member") is None
    assert family_of("closed.a.b") is None
    assert family_of("other.a") is None


def _literals(path: Path) -> Iterator[tuple[int, str]]:
    """Strings in code that begin like a key or subject, and literal keys of KV calls; docstrings say what they like."""
    tree = ast.parse(path.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    begins = ("af.", "af-", "AF_", "KV_AF", "$KV.", *(family.prefix for family in FAMILIES if family.tokens))
    server = ("$JS.", "_INBOX")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            wanted = begins if path.name in SERVERS and path.parent.name == "bus" else (*begins, *server)
            if node.value.startswith(wanted):
                yield node.lineno, node.value
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in KV_METHODS
            and isinstance(node.func.value, ast.Attribute)
            and node.func.value.attr == "kv"
            and node.args
            and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
            and getattr(node.args[0], "value", "x") != ""
        ):
            yield node.lineno, ast.unparse(node.args[0])


def test_no_key_and_no_subject_is_written_outside_of_the_table() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in sorted((ROOT / "astraflow").rglob("*.py"))
        if not (path.parent.name == "bus" and path.name in OWN)
        for line, text in _literals(path)
    ]
    assert not found


def test_no_test_reaches_into_private_names_of_the_bus() -> None:
    private = ("._link.", "._publisher.", "._kv.", "._logs.", "._claims.", "._feed ", "._session.", "._client.")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)
        for line in path.read_text().splitlines()
        if any(f"{bus}{name}" in line for name in private for bus in ("bus", "queue", "link", "session", "()"))
    ]
    assert not found


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    topology = Topology(run="test", region="local", envs=["math"], policies=["solver"])
    async with secured_server(tmp_path / "bus", topology) as running:
        yield running


async def _allowed(session: Session, subject: str, data: bytes = b"") -> bool:
    """Whether the server lets a request on `subject` through; what becomes of it doesn't matter."""
    try:
        await session.request(subject, data)
    except DeniedError:
        return False
    except NoAnswerError:
        return True
    return True


async def _may_hear(session: Session, subject: str) -> bool:
    feed = await session.subscribe(subject)
    await session.flush(5.0)
    try:
        return feed.failure is None
    finally:
        await feed.discard()


def _concrete(pattern: str) -> str:
    return pattern.replace(">", "x.y").replace(ANY, "x")


def _serves(key: Role, roles: tuple[Role, ...]) -> bool:
    return key is Role.ADMIN or any(role.key is key for role in roles if role is not Role.REGION)


async def test_each_role_may_do_exactly_what_the_table_says(secured: Secured) -> None:
    for role in Role.with_a_key():
        assert not await _differences(secured, role)


async def _differences(secured: Secured, role: Role) -> list[str]:
    topology = secured.topology
    async with secured.bus(role) as bus:
        session = await bus.link.session()
        wrong: list[str] = []

        async def see(subject: str, expected: bool, what: str, *, data: bytes = b"{}") -> None:
            if await _allowed(session, subject, data) is not expected:
                wrong.append(f"{role} {'may not' if expected else 'may'} {what} {subject}")

        for row in topology.rows:
            if row.kind not in (Kind.KV, Kind.MEMBERS):
                for pattern in (*row.subjects, *row.parts):
                    await see(_concrete(pattern), _serves(role, row.writers), "store on")
            await see(f"{API}.STREAM.PURGE.{row.stream}", _may_purge(role, row, topology), "purge")
            for verb in ("DELETE", "UPDATE", "MSG.DELETE", "SNAPSHOT", "RESTORE", "PEER.REMOVE", "LEADER.STEPDOWN"):
                if role is not Role.ADMIN:
                    await see(f"{API}.STREAM.{verb}.{row.stream}", False, "ask")
            for create in (f"CREATE.{row.stream}", f"CREATE.{row.stream}.c", f"DURABLE.CREATE.{row.stream}.c"):
                await see(f"{API}.CONSUMER.{create}", role is Role.ADMIN, "ask")
            for consumer in row.consumers:
                await see(f"{API}.CONSUMER.DELETE.{row.stream}.gone", role is Role.ADMIN, "ask")
                pull = f"{API}.CONSUMER.MSG.NEXT.{row.stream}.{consumer.name}"
                await see(pull, _serves(role, row.readers), "ask", data=b'{"batch": 1, "no_wait": true}')
                ack = f"$JS.ACK.{row.stream}.{consumer.name}.1.1.1.1.1"
                await see(ack, _serves(role, row.readers), "ack")
        for family in FAMILIES:
            await see(topology.kv_pattern(_concrete(family.pattern)), _serves(role, family.writers), "put")
        await see(f"{topology.kv_prefix}of.no.family", role is Role.ADMIN, "put")
        for core in core_subjects(topology):
            await see(_concrete(core.pattern), _serves(role, core.writers), "send to")
            if await _may_hear(session, core.pattern) is not _serves(role, core.readers):
                wrong.append(f"{role} hears {core.pattern}")
        for row in topology.rows:
            for pattern in row.subjects:
                if role is not Role.ADMIN and await _may_hear(session, pattern):
                    wrong.append(f"{role} hears {pattern}")
        return wrong


def _may_purge(role: Role, row: Row, topology: Topology) -> bool:
    """Names of streams are one token, and no key knows the policies: whoever purges one policy's may purge all."""
    of_policies = tuple(purger for other in topology.rows if other.policy for purger in other.purgers)
    return _serves(role, row.purgers) or _serves(role, of_policies)

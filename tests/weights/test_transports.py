"""Fulls by file and http: the same bytes under the same digests as over the bus, whatever dies or is damaged."""

import asyncio
import http.client
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from astraflow.bus import Bus, EmbeddedServer
from astraflow.errors import ConfigError, WeightsError
from astraflow.messages import Manifest, Place
from astraflow.weights.transfer import payload_reader as reader
from astraflow.weights.transfer.file_server import MAX_CONNECTIONS
from astraflow.weights.transfer.follower import WeightFollower, first_head
from astraflow.weights.transfer.payload_reader import PayloadReader
from tests.support import eventually
from tests.weights.weight_transports import Proxy, events, manifest_of, publish, trainer, version


async def advance(follower: WeightFollower, bus: Bus) -> int:
    """Go to the head, check every bit, and say which version it is."""
    head = await first_head(bus, "solver")
    await follower.advance(head)
    assert follower.shadow is not None
    assert bytes(follower.shadow.tensors["w"].data) == bytes(version(head.version)["w"].data)
    return head.version


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name[:15] for path in folder.rglob("*") if path.is_file())


# --- file


@pytest.mark.parametrize("on_nats", [True, False])
async def test_fulls_in_a_folder_are_followed_and_two_are_kept(
    nats_server: EmbeddedServer, tmp_path: Path, shared: Path, on_nats: bool
) -> None:
    async with trainer(nats_server, tmp_path, full_transport="file", folder=str(shared), full_on_nats=on_nats) as (
        ctx,
        publisher,
    ):
        follower = WeightFollower(ctx.bus, "solver")
        for number in range(8):
            await publish(publisher, number)
            assert await advance(follower, ctx.bus) == number
        assert await advance(WeightFollower(ctx.bus, "solver"), ctx.bus) == 7
        assert files(shared) == ["000000-00000003", "000000-00000006"]
        manifest = await manifest_of(ctx, 6)
        assert manifest.parts_stored is on_nats
        assert await events(ctx, "weights-from-bus") == []
        stored = (await ctx.bus.logs.state(ctx.bus.topology.weights("solver"))).last_sequence
        assert (stored > 30) is on_nats  # three fulls of nine parts, or only manifests, deltas and files


def block(folder: Path, *, free: bool = False) -> None:
    """Make that nothing can be written below an empty folder, root or not; or that it can be again."""
    if free:
        folder.unlink()
    else:
        folder.rmdir()
        folder.touch()


def damage(path: Path, how: str) -> None:
    if how == "truncated":
        with path.open("r+b") as file:
            file.truncate(1000)
    elif how == "a bit":
        with path.open("r+b") as file:
            file.seek(3 << 20)
            byte = file.read(1)[0]
            file.seek(3 << 20)
            file.write(bytes([byte ^ 1]))
    elif how == "gone":
        path.unlink()
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("truncated", "has 1000 bytes, expected 4194304"),
        ("a bit", "is damaged near byte 3145728"),
        ("gone", "can't be read: No such file"),
        ("a folder", "bytes, expected 4194304"),
    ],
)
async def test_a_damaged_file_is_refused_and_the_old_version_stays(
    nats_server: EmbeddedServer, tmp_path: Path, shared: Path, how: str, sentence: str
) -> None:
    async with trainer(
        nats_server, tmp_path, full_every=1, full_transport="file", folder=str(shared), full_on_nats=False
    ) as (ctx, publisher):
        follower = WeightFollower(ctx.bus, "solver")
        await publish(publisher, 0)
        await advance(follower, ctx.bus)
        await publish(publisher, 1)
        damage(Path((await manifest_of(ctx, 1)).places[0].address), how)
        with pytest.raises(WeightsError, match="full version 1 of solver is not on the bus, and file .*" + sentence):
            await follower.advance(await first_head(ctx.bus, "solver"))
        assert follower.shadow is not None
        assert bytes(follower.shadow.tensors["w"].data) == bytes(version(0)["w"].data)
        await publish(publisher, 2)
        assert await advance(follower, ctx.bus) == 2


async def test_a_reader_without_the_folder_takes_the_bus_and_says_so(
    nats_server: EmbeddedServer, tmp_path: Path, shared: Path
) -> None:
    async with trainer(nats_server, tmp_path, full_transport="file", folder=str(shared)) as (ctx, publisher):
        await publish(publisher, 0)
        damage(Path((await manifest_of(ctx, 0)).places[0].address), "a bit")
        assert await advance(WeightFollower(ctx.bus, "solver"), ctx.bus) == 0
        assert "is damaged near byte 3145728" in (await events(ctx, "weights-from-bus"))[0]


async def test_a_full_that_the_folder_cannot_take_goes_over_the_bus_until_it_can(
    nats_server: EmbeddedServer, tmp_path: Path, shared: Path
) -> None:
    async with trainer(
        nats_server, tmp_path, full_every=1, full_transport="file", folder=str(shared), full_on_nats=False
    ) as (ctx, publisher):
        follower = WeightFollower(ctx.bus, "solver")
        block(shared)
        await publish(publisher, 0)
        assert await advance(follower, ctx.bus) == 0
        assert "can't be written" in ctx.last_error
        assert "it goes over the bus" in (await events(ctx, "weights-folder"))[0]
        block(shared, free=True)
        await publish(publisher, 1)
        assert await advance(follower, ctx.bus) == 1
        assert (await manifest_of(ctx, 1)).parts_stored is False
        assert ctx.last_error == ""


async def test_a_trainer_on_another_machine_goes_on_and_removes_only_what_is_older(
    nats_server: EmbeddedServer, tmp_path: Path, shared: Path
) -> None:
    given = {"full_transport": "file", "full_on_nats": False, "full_every": 1}
    async with trainer(nats_server, tmp_path, folder=str(shared), **given) as (ctx, old):
        follower = WeightFollower(ctx.bus, "solver")
        await publish(old, 0, 1)
        await advance(follower, ctx.bus)
        async with trainer(nats_server, tmp_path / "other", folder=str(shared), epoch=1, **given) as (_, new):
            await publish(new, 2)
            assert files(shared) == ["000000-00000001", "000001-00000002"]
            await old._fulls.keep((), epoch=0)  # frozen in the middle of a purge, and awake again
            assert files(shared) == ["000001-00000002"]
            assert await advance(WeightFollower(ctx.bus, "solver"), ctx.bus) == 2
        shutil.rmtree(shared)
        with pytest.raises(WeightsError, match="No such file"):
            await advance(WeightFollower(ctx.bus, "solver"), ctx.bus)
        other = tmp_path / "elsewhere"
        other.mkdir()
        async with trainer(nats_server, tmp_path, folder=str(other), epoch=2, **given) as (_, third):
            await publish(third, 3)
            assert await advance(follower, ctx.bus) == 3


# --- http


async def test_fulls_by_http_are_followed_and_a_newcomer_needs_no_bus_for_them(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SPAN_BYTES", 1 << 20)
    async with trainer(nats_server, tmp_path, full_transport="http") as (ctx, publisher):
        follower = WeightFollower(ctx.bus, "solver")
        for number in range(5):
            await publish(publisher, number)
            assert await advance(follower, ctx.bus) == number
        stream, subject = ctx.bus.topology.weights("solver"), f"{ctx.bus.topology.weight_part('solver', 0)}.*"
        manifest = await manifest_of(ctx, 3)
        assert manifest.places[0].address.startswith("http://127.0.0.1:")
        await ctx.bus.logs.purge(
            stream, below_sequence=(await ctx.bus.logs.state(stream)).last_sequence, subject=subject
        )
        assert await PayloadReader(ctx.bus, "solver").payload(manifest) == bytes(version(3)["w"].data)
        assert await events(ctx, "weights-from-bus") == []


async def ask(place: Place, path: str = "", **headers: str) -> tuple[int, bytes]:
    """(status, body) of a GET with these headers, and the place's token unless `authorization` is among them."""
    url = urlsplit(place.address)
    given = {"authorization": f"Bearer {place.token}", "range": "bytes=0-9"} | headers

    def talk() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=5)
        connection.putrequest("GET", path or url.path, skip_accept_encoding=True)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read()

    return await asyncio.to_thread(talk)


async def test_only_who_has_the_token_reads_and_only_fulls(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with trainer(nats_server, tmp_path, full_transport="http") as (ctx, publisher):
        await publish(publisher, 0)
        place = (await manifest_of(ctx, 0)).places[0]
        data, name = bytes(version(0)["w"].data), urlsplit(place.address).path
        (tmp_path / "policies" / "solver" / "weights" / "secret").write_text("x" * 20)
        assert await ask(place) == (206, data[:10])
        assert await ask(place, range="bytes=5-") == (206, data[5:])
        assert await ask(place, range=f"bytes=10-{10**17}") == (206, data[10:])
        for token in ("", "Bearer ", f"Bearer {place.token}x", place.token, "Bearer ü"):
            assert (await ask(place, authorization=token))[0] == 401
        for path in (
            "/secret",
            "/",
            "/../../../../../../etc/passwd",
            f"/..{name}",
            f"/weights{name}",
            f"{name}/..",
            f"{name}%00",
            "/%2e%2e/secret",
            f"//x{name}",
            "http://elsewhere/",
        ):
            assert (await ask(place, path))[0] == 404, path
        for wanted in ("", "bytes=-5", "bytes=9-2", "bytes=0-1,3-4", f"bytes={len(data)}-", "bytes=" + "9" * 30 + "-"):
            assert (await ask(place, range=wanted))[0] == 416, wanted


def through(manifest: Manifest, port: int) -> Manifest:
    """The manifest, with a proxy before its server."""
    url = urlsplit(manifest.places[0].address)
    place = msgspec.structs.replace(manifest.places[0], address=f"http://127.0.0.1:{port}{url.path}")
    return msgspec.structs.replace(manifest, places=(place,))


async def test_a_cut_download_goes_on_where_it_was(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with trainer(nats_server, tmp_path, full_transport="http") as (ctx, publisher):
        await publish(publisher, 0)
        manifest = await manifest_of(ctx, 0)
        target, size = urlsplit(manifest.places[0].address).port or 0, manifest.size_bytes
        async with Proxy(target, limit=lambda number: 600_000 if number % 2 else 100).running() as proxy:
            data = await PayloadReader(ctx.bus, "solver").payload(through(manifest, proxy.port))
        assert bytes(data) == bytes(version(0)["w"].data)
        assert proxy.connections > 10
        assert proxy.sent < size + proxy.connections * 1000
        assert await events(ctx, "weights-from-bus") == []


async def test_a_server_that_dies_in_the_middle_costs_only_what_it_had_not_sent(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SPAN_BYTES", 1 << 20)
    monkeypatch.setattr(reader, "WORKERS", 1)
    async with trainer(nats_server, tmp_path, full_transport="http") as (ctx, publisher):
        await publish(publisher, 0)
        manifest = await manifest_of(ctx, 0)
        target = urlsplit(manifest.places[0].address).port or 0
        async with Proxy(target, limit=lambda number: 10**9 if number < 2 else 0).running() as proxy:
            fetched: list[int] = []
            get_parts = ctx.bus.parts.get

            async def counted(stream: str, subject: str, parts: object) -> bytearray:
                data = await get_parts(stream, subject, parts)  # type: ignore[arg-type]
                fetched.append(len(data))
                return data

            monkeypatch.setattr(ctx.bus.parts, "get", counted)
            data = await PayloadReader(ctx.bus, "solver").payload(through(manifest, proxy.port))
        assert bytes(data) == bytes(version(0)["w"].data)
        assert 0 < sum(fetched) < manifest.size_bytes
        assert f"http://127.0.0.1:{proxy.port}" in (await events(ctx, "weights-from-bus"))[0]


async def test_a_trainer_that_is_gone_leaves_its_fulls_on_the_bus(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with trainer(nats_server, tmp_path, full_transport="http") as (ctx, publisher):
        await publish(publisher, 0)
    async with trainer(nats_server, tmp_path, epoch=1, full_transport="http") as (ctx, publisher):
        follower = WeightFollower(ctx.bus, "solver")
        assert await advance(follower, ctx.bus) == 0
        assert "Connection refused" in (await events(ctx, "weights-from-bus"))[0]
        await publish(publisher, 1)
        assert await advance(follower, ctx.bus) == 1
        assert len(await events(ctx, "weights-from-bus")) == 1


async def test_other_machines_are_served_by_tls_and_only_the_server_of_the_manifest_is_believed(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    given = {"full_transport": "http", "listen": "0.0.0.0:0", "advertise": "127.0.0.1"}
    async with trainer(nats_server, tmp_path, **given) as (ctx, publisher):
        await publish(publisher, 0)
        manifest = await manifest_of(ctx, 0)
        assert manifest.places[0].address.startswith("https://127.0.0.1:")
        assert await PayloadReader(ctx.bus, "solver").payload(manifest) == bytes(version(0)["w"].data)
        assert await events(ctx, "weights-from-bus") == []
        async with trainer(nats_server, tmp_path / "other", epoch=1, **given) as (_, other):
            await publish(other, 1)
            certificate = (await manifest_of(ctx, 1)).places[0].certificate
        place = msgspec.structs.replace(manifest.places[0], certificate=certificate)
        await PayloadReader(ctx.bus, "solver").payload(msgspec.structs.replace(manifest, places=(place,)))
        assert "CERTIFICATE_VERIFY_FAILED" in (await events(ctx, "weights-from-bus"))[0]


async def test_connections_over_the_bound_are_dropped_and_free_ones_serve_again(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with trainer(nats_server, tmp_path, full_transport="http") as (ctx, publisher):
        await publish(publisher, 0)
        place = (await manifest_of(ctx, 0)).places[0]
        port = urlsplit(place.address).port or 0
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS)]

        async def served() -> bool:
            try:
                return (await ask(place))[0] == 206
            except (OSError, http.client.HTTPException):
                return False

        await eventually(lambda: _refused(served))
        for each in silent:
            each.close()
        await eventually(served)


async def _refused(served: object) -> bool:
    return not await served()  # type: ignore[operator]


async def test_an_address_that_cannot_be_listened_on_is_one_sentence(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"can't be served on {listen}: Address already in use"):
            async with trainer(nats_server, tmp_path, full_transport="http", listen=listen):
                pass


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (Place(transport="carrier-pigeon", address="x"), "transport 'carrier-pigeon' isn't known"),
        (Place(transport="http", address="ftp://x/y"), "is not like http://HOST:PORT/NAME"),
        (Place(transport="http", address="http://[::1/y"), "is not like http://HOST:PORT/NAME"),
        (Place(transport="http", address="https://127.0.0.1:9/y", certificate="x"), "certificate of https://"),
        (Place(transport="file", address="/dev/zero"), "/dev/zero has 0 bytes"),
        (Place(transport="file", address="a\0b"), "can't be read"),
    ],
    ids=["pigeon", "ftp", "bracket", "certificate", "device", "nul"],
)
async def test_places_that_make_no_sense_are_told_and_passed_over(
    nats_server: EmbeddedServer, tmp_path: Path, place: Place, sentence: str
) -> None:
    async with trainer(nats_server, tmp_path) as (ctx, publisher):
        await publish(publisher, 0)
        manifest = msgspec.structs.replace(await manifest_of(ctx, 0), places=(place,))
        assert await PayloadReader(ctx.bus, "solver").payload(manifest) == bytes(version(0)["w"].data)
        assert sentence in (await events(ctx, "weights-from-bus"))[0]

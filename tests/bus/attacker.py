"""Below every client: bytes on a secured server's wire, as somebody writes them who has a key and no manners."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import nkeys

from astraflow.bus import BusOptions


class Attacker:
    """One connection with a role's key. Made by `attacking`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: str) -> None:
        self._reader = reader
        self._writer = writer
        self.inbox = inbox
        self.heard: list[bytes] = []  # whole messages: the line, headers and payload
        self.denied: list[str] = []

    async def publish(
        self, subject: str | bytes, data: bytes = b"", *, reply: str = "", headers: dict[str, str] | bytes | None = None
    ) -> None:
        """`headers` as bytes: the block as it is, without the empty line at its end."""
        name = subject.encode() if isinstance(subject, str) else subject
        to = b" " + reply.encode() if reply else b""
        if headers is None:
            self._writer.write(b"PUB %s%s %d\r\n%s\r\n" % (name, to, len(data), data))
        else:
            block = headers if isinstance(headers, bytes) else _block(headers)
            sizes = b"%d %d" % (len(block) + 4, len(block) + 4 + len(data))
            self._writer.write(b"HPUB %s%s %s\r\n%s\r\n\r\n%s\r\n" % (name, to, sizes, block, data))
        await self._writer.drain()

    async def api(self, request: str, body: Any = None) -> dict[str, Any] | None:
        """The JetStream API's answer; None if none comes because it is denied."""
        before = len(self.heard)
        data = json.dumps(body).encode() if body is not None else b""
        await self.publish(f"$JS.API.{request}", data, reply=f"{self.inbox}.api")
        await self.settle()
        for message in self.heard[before:]:
            with contextlib.suppress(json.JSONDecodeError):
                return dict(json.loads(message[message.index(b"\r\n") + 2 : -2]))
        return None

    async def listen(self, subject: str) -> None:
        self._writer.write(f"SUB {subject} {len(subject) + 100}\r\n".encode())
        await self.settle()

    async def settle(self) -> None:
        """Returns when the server has done what it was told, and has answered."""
        for _ in range(3):
            self._writer.write(b"PING\r\n")
            await self._until_pong()
            await asyncio.sleep(0.02)  # JetStream answers from elsewhere than the connection's own loop

    async def _until_pong(self) -> None:
        async with asyncio.timeout(10):
            while True:
                line = await self._reader.readuntil(b"\r\n")
                verb = line.split(maxsplit=1)[0].upper()
                if verb == b"PONG":
                    return
                if verb == b"PING":
                    self._writer.write(b"PONG\r\n")
                elif verb in (b"MSG", b"HMSG"):
                    self.heard.append(line + await self._reader.readexactly(int(line.split()[-1]) + 2))
                elif verb == b"-ERR":
                    self.denied.append(line.decode().strip())

    async def connect(self, nonce: str, seed: bytes) -> Self:
        pair = nkeys.from_seed(bytearray(seed))
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        hello = {
            "verbose": False,
            "pedantic": False,
            "lang": "none",
            "version": "0",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "nkey": pair.public_key.decode(),
            "sig": signature,
        }
        self._writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
        await self.listen(f"{self.inbox}.>")
        return self


def _block(headers: dict[str, str]) -> bytes:
    return "\r\n".join(["NATS/1.0", *(f"{name}: {value}" for name, value in headers.items())]).encode()


@contextlib.asynccontextmanager
async def attacking(options: BusOptions) -> AsyncIterator[Attacker]:
    """A connection with the key and to the server of `options`."""
    host, _, port = options.url.removeprefix("nats://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    greeting = json.loads((await reader.readuntil(b"\r\n")).removeprefix(b"INFO "))
    await writer.start_tls(ssl.create_default_context(cafile=options.ca_file), server_hostname="localhost")
    seed = (await asyncio.to_thread(Path(options.credentials_file).read_bytes)).strip()
    inbox = f"_INBOX.{nkeys.from_seed(bytearray(seed)).public_key.decode()}"
    try:
        yield await Attacker(reader, writer, inbox).connect(greeting["nonce"], seed)
    finally:
        writer.close()

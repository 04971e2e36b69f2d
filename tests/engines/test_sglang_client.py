"""The HTTP client of SGLang servers, against sockets that behave as servers may."""

import asyncio
import time

from astraflow.engines.sglang.client import Client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\ntrue"


async def test_a_connection_that_the_server_closes_while_this_process_is_busy_fails_no_call() -> None:
    answered: list[asyncio.StreamWriter] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        await reader.readexactly(length)
        writer.write(ANSWER)
        await writer.drain()
        answered.append(writer)  # open, as a server that keeps connections alive leaves it for some seconds
        assert await reader.read() == b""

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        client = await Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").open()
        try:
            for _ in range(3):
                assert await client.post("/begin_weight_update", {}, within_s=10) is True
                for writer in answered:
                    writer.close()
                time.sleep(0.01)  # noqa: ASYNC251 - nobody in this process gets to see it
        finally:
            await client.close()
    assert len(answered) == 3

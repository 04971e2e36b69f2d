"""Keys, and whatever bytes come: answered in words, never with a traceback, and the gateway goes on."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from astraflow.bus.certificates import make_certificates, own_names
from astraflow.errors import ConfigError
from astraflow.gateway.server import Gateway, Listening
from astraflow.gateway.sessions import Sessions
from tests.gateway.world import RUN_KEY, USER, World, chat, world

DEEP = b'{"model": "solver", "messages": [], "tools": [{"function": ' + b'{"a":' * 100_000
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
BODIES: list[tuple[str, bytes | dict[str, Any], int, str]] = [
    ("chat/completions", b"", 400, "missing required field `model`"),
    ("chat/completions", b"{", 400, "truncated"),
    ("chat/completions", b"[1]", 400, "Expected `object`, got `array`"),
    ("chat/completions", b"\xff\xfe", 400, "can't be read"),
    ("chat/completions", b'{"model": "solver", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, ""),
    ("chat/completions", DEEP, 400, "nested too deeply"),
    ("chat/completions", {"model": 3, "messages": []}, 400, "Expected `str`, got `int` - at `$.model`"),
    ("chat/completions", chat(), 400, "messages is empty"),
    ("chat/completions", chat({"role": "user", "content": 7}), 400, "at `$.messages[0].content`"),
    ("chat/completions", chat({"role": "wizard", "content": "x"}), 400, "role is 'wizard'"),
    ("chat/completions", chat(IMAGE), 400, "content of type 'image_url' is not offered"),
    ("chat/completions", chat(USER) | {"model": "sovler"}, 404, "did you mean 'solver'"),
    ("chat/completions", chat(USER, n=2), 400, "n is 2"),
    ("chat/completions", chat(USER, top_logprobs=2), 400, "top_logprobs is not offered"),
    ("chat/completions", chat(USER, max_tokens=0), 400, "the limit of tokens is 0"),
    ("chat/completions", chat(USER, temperature=-1), 400, "temperature"),
    ("chat/completions", chat(USER, top_p=7), 400, "top_p"),
    ("chat/completions", chat(USER, tools=[3]), 400, "at `$.tools[0]`"),
    ("chat/completions", chat(USER, tool_choice={"type": "function"}), 400, "tool_choice by name"),
    ("chat/completions", chat(USER, response_format={"type": "json_schema"}), 400, "response_format json_schema"),
    ("chat/completions", chat(USER, frequency_penalty=1), 400, "penalties"),
    ("completions", {"model": "solver", "prompt": [1, "a"]}, 400, "neither one text nor one list"),
    ("completions", {"model": "solver", "prompt": [-1]}, 400, "neither one text nor one list"),
    ("completions", {"model": "solver", "prompt": []}, 400, "neither one text nor one list"),
    ("responses", {"model": "solver", "input": []}, 400, "input is empty"),
    ("responses", {"model": "solver", "input": "x", "previous_response_id": "r"}, 400, "previous_response_id"),
    ("responses", {"model": "solver", "input": "x", "tools": [{"type": "web_search"}]}, 400, "web_search"),
    ("messages", {"model": "solver", "messages": []}, 400, "missing required field `max_tokens`"),
    ("messages", {"model": "solver", "messages": [], "max_tokens": 5}, 400, "messages is empty"),
    ("messages/count_tokens", {"model": "x", "messages": [USER]}, 404, "there is no model 'x'"),
    ("reward", {}, 400, "give reward"),
    ("reward", {"reward": 1, "rewards": {"solver": 1}}, 400, "give reward"),
    ("reward", {"reward": "high"}, 400, "Expected `float | null`, got `str`"),
    ("reward", b'{"reward": 1e999}', 400, ""),
    ("reward", b'{"reward": NaN}', 400, ""),
    ("reward", {"rewards": {"slover": 1}}, 400, "there is no policy or role 'slover' here; did you mean 'solver'"),
    ("reward", {"reward": 1, "correct": 2}, 400, "correct is 2.0"),
    ("reward", {"reward": 1, "parts": {str(each): 1 for each in range(40)}}, 400, "parts has 40 numbers"),
    ("no/such/path", {}, 404, "POST /v1/no/such/path is not offered here"),
    ("models", {}, 405, "POST /v1/models is not offered here"),
]


async def test_whatever_comes_is_answered_in_words(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("fine") as played:
        for path, body, status, words in BODIES:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            got, answer = await found.post(f"/v1/{path}", None, played.key, data=sent)
            told = answer.get("error", {}).get("message", "")
            assert (got, words in told) == (status, True), (path, sent[:80], answer)
            assert "Traceback" not in json.dumps(answer)
        assert found.says.calls == []
        most = chat(USER, max_tokens=10**30)  # a limit beyond the policy's own is none
        assert (await found.post("/v1/chat/completions", most, played.key))[0] == 200
        assert [call.sampling.max_new_tokens for call in found.says.calls] == [200]


@pytest.mark.parametrize("key", ["", "x", RUN_KEY, "sk-" + "a" * 5000, "ключ"])
async def test_no_session_without_its_own_key(tmp_path: Path, key: str) -> None:
    async with world(tmp_path) as found, found.session("fine") as played:
        for path in ("chat/completions", "messages", "reward", "end", "cancel"):
            status, answer = await found.post(f"/{path}", {}, "", authorization=f"Bearer {key}")
            assert (status, played.key in json.dumps(answer)) == (401, False), path
        status, answer = await found.post("/sessions", {}, played.key)
        assert (status, answer["error"]["message"]) == (401, "sessions are given for the run's key")


async def test_a_key_may_stand_in_either_header_or_in_the_address(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("a", "b", "c") as played:
        for path, headers in (
            ("/v1/chat/completions", {"x_api_key": played.key}),
            (f"/s/{played.key}/v1/chat/completions", {}),
            (f"/s/{played.key}/chat/completions", {"authorization": "Bearer of-something-else"}),
        ):
            assert (await found.post(path, chat(USER), "", **headers))[0] == 200


async def raw(found: World, sent: bytes, *, more_to_come: bool = False) -> bytes:
    """The beginning of what is answered to bytes on a connection of their own."""
    host, _, port = found.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        if not more_to_come:
            writer.write_eof()
        return await reader.read(4096)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % each for each in range(50_000)) + b"\r\n",
        b"GET /v1/models HTTP/1.1\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzz",
        b"\x16\x03\x01\x02\x00\x01" + b"\x00" * 500,
        b"NONSENSE\r\n\r\n",
    ],
)
async def test_what_is_no_request_ends_its_own_connection_only(tmp_path: Path, sent: bytes) -> None:
    async with world(tmp_path) as found, found.session("fine") as played:
        answer = await raw(found, sent)
        assert b"Traceback" not in answer
        assert not answer.startswith(b"HTTP/1.1 200")
        assert (await found.post("/v1/chat/completions", chat(USER), played.key))[0] == 200


async def test_a_body_that_is_too_large_is_refused_and_not_read_without_a_key(tmp_path: Path) -> None:
    async with world(tmp_path) as found, found.session("fine") as played:
        large = b'{"model": "' + b"x" * (65 << 20)
        status, answer = await found.post("/v1/chat/completions", None, played.key, data=large)
        assert (status, answer["error"]["message"]) == (413, "the body has more than 64 MiB")
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n"
        assert (await raw(found, head, more_to_come=True)).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("listening", "words"),
    [
        (Listening(address="0.0.0.0:0"), "keys would travel in the open"),
        (Listening(address="[::]:0"), "keys would travel in the open"),
        (Listening(address="192.168.1.5:80"), "keys would travel in the open"),
        (Listening(address="0.0.0.0:0", certificate="a.pem"), "belong together"),
        (Listening(address="nowhere"), "not like HOST:PORT"),
    ],
)
def test_a_public_address_needs_tls(listening: Listening, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listening.checked()


async def test_with_tls_a_public_address_is_served(tmp_path: Path) -> None:
    make_certificates(tmp_path, own_names("0.0.0.0"))
    listening = Listening(
        address="0.0.0.0:0", certificate=str(tmp_path / "server.pem"), key_file=str(tmp_path / "server.key")
    )
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with Gateway(Sessions(), key=RUN_KEY).listen(listening) as url, aiohttp.ClientSession() as http:
        port = url.rpartition(":")[2]
        async with http.post(f"https://localhost:{port}/sessions", ssl=trust, data=b"{}") as answer:
            assert (url.startswith("https://"), answer.status) == (True, 401)

"""Notices of clouds, from small servers that answer as the clouds' metadata services do."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from astraflow.node.clouds import CLOUDS
from astraflow.node.preemption import Preemption

Answer = Callable[[str, str, Message], tuple[int, str]]


@contextmanager
def service(answer: Answer) -> Iterator[str]:
    """Its address. `answer(method, path, headers)` → status and body."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, body = answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = _answer

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


class Aws:
    """Wants a token, which runs out; 404 until there is something to say."""

    def __init__(self) -> None:
        self.says, self.tokens = "", 0

    def __call__(self, method: str, path: str, headers: Message) -> tuple[int, str]:
        if (method, path) == ("PUT", "/latest/api/token") and "X-aws-ec2-metadata-token-ttl-seconds" in headers:
            self.tokens += 1
            return 200, f"token-{self.tokens}"
        if headers.get("X-aws-ec2-metadata-token") != f"token-{self.tokens}":
            return 401, ""
        assert path == "/latest/meta-data/spot/instance-action"
        return (200, self.says) if self.says else (404, "")


def test_aws_says_nothing_until_it_does_and_when() -> None:
    aws, cloud = Aws(), CLOUDS["aws"]
    with service(aws) as address:
        assert cloud.left_s(cloud, address) is None
        assert (cloud.left_s(cloud, address), aws.tokens) == (None, 1)
        aws.tokens = 2  # the one that was given has run out
        assert (cloud.left_s(cloud, address), cloud.left_s(cloud, address), aws.tokens) == (None, None, 3)
        aws.says = json.dumps({"action": "terminate", "time": soon(90).strftime("%Y-%m-%dT%H:%M:%SZ")})
        left_s = cloud.left_s(cloud, address)
        assert left_s is not None
        assert 0 < left_s <= 90
        aws.says = json.dumps({"action": "terminate", "time": soon(7200).strftime("%Y-%m-%dT%H:%M:%SZ")})
        assert cloud.left_s(cloud, address) == 120, "its clock isn't ours"
        aws.says = json.dumps({"action": "stop", "time": soon(-60).strftime("%Y-%m-%dT%H:%M:%SZ")})
        assert cloud.left_s(cloud, address) == 0


def test_gcp_answers_200_all_the_time() -> None:
    said, cloud = ["FALSE"], CLOUDS["gcp"]

    def answer(method: str, path: str, headers: Message) -> tuple[int, str]:
        assert (method, path) == ("GET", "/computeMetadata/v1/instance/preempted")
        return (200, said[0]) if headers.get("Metadata-Flavor") == "Google" else (403, "")

    with service(answer) as address:
        assert cloud.left_s(cloud, address) is None
        said[0] = "TRUE\n"
        assert cloud.left_s(cloud, address) == 30
        said[0] = "<html>a captive portal</html>"
        with pytest.raises(ValueError, match="TRUE or FALSE"):
            cloud.left_s(cloud, address)


IN_25_S = "in 25 s"  # by the clock when it is asked


def event(kind: str, machine: str, not_before: str) -> dict[str, object]:
    return {"EventId": "x", "EventType": kind, "Resources": [machine], "NotBefore": not_before}


@pytest.mark.parametrize(
    ("events", "least", "most"),
    [
        ([event("Preempt", "us_1", IN_25_S)], 0.0, 25.0),
        ([event("Preempt", "us_1", "")], 30.0, 30.0),
        ([event("Preempt", "them", ""), event("Preempt", "us_1", "")], 30.0, 30.0),
    ],
    ids=["with its time", "begun", "beside another"],
)
def test_azure_tells_each_machine_of_all(events: list[dict[str, object]], least: float, most: float) -> None:
    cloud = CLOUDS["azure"]
    now: list[dict[str, object]] = []

    def answer(method: str, path: str, headers: Message) -> tuple[int, str]:
        assert headers.get("Metadata") == "true"
        if path.startswith("/metadata/instance/compute/name"):
            return 200, "us_1"
        assert path == "/metadata/scheduledevents?api-version=2020-07-01"
        text = json.dumps({"DocumentIncarnation": 1, "Events": now})
        return 200, text.replace(IN_25_S, format_datetime(soon(25), usegmt=True))

    with service(answer) as address:
        assert cloud.left_s(cloud, address) is None
        now[:] = [event("Reboot", "us_1", ""), event("Preempt", "them", "")]
        assert cloud.left_s(cloud, address) is None
        now[:] = events
        left_s = cloud.left_s(cloud, address)
        assert left_s is not None
        assert least <= left_s <= most


async def test_a_clouds_notice_carries_the_time_that_is_left() -> None:
    with service(lambda *_: (200, "TRUE")) as address:
        notice = await Preemption(cloud="gcp", address=address).noticed(report=print)
    assert (notice.text, notice.left_s) == ("gcp takes it in 30 s", 30)

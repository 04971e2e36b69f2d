"""What a cloud's metadata service says of this machine's end: AWS, GCP, Azure.

Two of them answer 200 all the time, so what counts is what they say. It polls nothing; `preemption.py` does.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from astraflow import clock

_LINK_LOCAL = "http://169.254.169.254"
_TOKEN_TTL_S = 21_600
_NOT_FOUND, _UNAUTHORIZED = 404, 401
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would ask for another machine


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One of them.

    Attributes:
        lead_s: the notice that it promises.
        every_s: pause between two questions.
        patience_s: how long an answer may take.
        left_s: asks the service at an address: seconds until the machine goes, None while it stays. Blocks. Raises
            OSError or ValueError for a service that isn't there or says something else.
        address: of the service.
    """

    lead_s: float
    every_s: float
    patience_s: float
    left_s: Callable[["Cloud", str], float | None]
    address: str

    def get(self, url: str, headers: Mapping[str, str], *, method: str = "GET") -> str:
        """The body of an answer. Raises OSError (HTTPError is one)."""
        request = urllib.request.Request(url, headers=dict(headers), method=method)
        with _opener.open(request, timeout=self.patience_s) as answer:
            return str(answer.read().decode())

    def until(self, moment: datetime) -> float:
        """Seconds until then, and never more than the cloud promises: its clock needn't be ours."""
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return min(max(moment.timestamp() - clock.wall(), 0.0), self.lead_s)


_aws_tokens: dict[str, str] = {}


def _aws(cloud: Cloud, address: str) -> float | None:
    if address not in _aws_tokens:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        _aws_tokens[address] = cloud.get(f"{address}/latest/api/token", ttl, method="PUT")
    try:
        said = cloud.get(
            f"{address}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": _aws_tokens[address]}
        )
    except urllib.error.HTTPError as exc:
        if exc.code == _UNAUTHORIZED:
            del _aws_tokens[address]  # it has run out
        elif exc.code != _NOT_FOUND:
            raise
        return None
    return cloud.until(datetime.fromisoformat(json.loads(said)["time"].replace("Z", "+00:00")))


def _gcp(cloud: Cloud, address: str) -> float | None:
    said = cloud.get(f"{address}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}).strip()
    if said not in ("TRUE", "FALSE"):
        raise ValueError(f"it says {said[:40]!r} in place of TRUE or FALSE")
    return cloud.lead_s if said == "TRUE" else None


def _azure(cloud: Cloud, address: str) -> float | None:
    metadata = {"Metadata": "true"}
    events = json.loads(cloud.get(f"{address}/metadata/scheduledevents?api-version=2020-07-01", metadata))["Events"]
    preempts = [event for event in events if event["EventType"] == "Preempt"]
    if not preempts:
        return None
    # A scale set tells each of its machines of all of them.
    us = cloud.get(f"{address}/metadata/instance/compute/name?api-version=2021-02-01&format=text", metadata).strip()
    ours = [event for event in preempts if us in event.get("Resources", [us])]
    begins = [event.get("NotBefore") for event in ours]  # empty once it has begun
    return min((cloud.until(parsedate_to_datetime(at)) if at else cloud.lead_s for at in begins), default=None)


CLOUDS: Mapping[str, Cloud] = {
    "aws": Cloud(
        lead_s=120, every_s=5, patience_s=5, left_s=_aws, address=_LINK_LOCAL
    ),
    "gcp": Cloud(
        lead_s=30, every_s=1, patience_s=5, left_s=_gcp, address="http://metadata.google.internal"
    ),
    "azure": Cloud(  # its first answer may take two minutes
        lead_s=30, every_s=1, patience_s=150, left_s=_azure, address=_LINK_LOCAL
    ),
}  # fmt: skip

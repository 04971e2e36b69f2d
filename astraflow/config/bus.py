"""The server between the actors, and its bounds: [bus]."""

from typing import Annotated

from msgspec import Struct

from astraflow.config.kinds import Name, doc


class BusSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[bus]: the NATS server and the bounds of its streams."""

    url: Annotated[str, doc("an external server; empty = `up` starts its own")] = ""
    token_file: Annotated[str, doc("file with the server's token")] = ""
    credentials_file: Annotated[str, doc("NATS key (.nk) or .creds file, for every process of `up`")] = ""
    credentials_dir: Annotated[str, doc("instead: a folder with <role>.nk, from `astraflow bus --secure`")] = ""
    ca_file: Annotated[str, doc("who signed the server's certificate; set: nothing is sent without TLS")] = ""
    region: Annotated[Name, doc("where this server is; part of stream names")] = "local"
    replicas: Annotated[
        int,
        doc("servers of a cluster that keep each message; 0 = 3 in a cluster, 1 on a server alone", ge=0, le=5),
    ] = 0
    ack_wait_s: Annotated[float, doc("a task is redelivered when it is not renewed for this long", gt=0)] = 30.0
    answer_s: Annotated[float, doc("a publish that the server leaves unanswered for this long is sent again", gt=0)] = (
        5.0
    )
    member_ttl_s: Annotated[int, doc("an actor that is silent for this long is gone", ge=1)] = 6
    lease_s: Annotated[float, doc("a dataflow or trainer that is silent for this long can be replaced", ge=0.5)] = 6.0
    silence_s: Annotated[float, doc("a generation that is silent for this long is continued elsewhere", gt=0)] = 15.0
    request_ttl_s: Annotated[float, doc("a generation request waits at most this long for a replica", gt=0)] = 600.0
    max_tasks: Annotated[int, doc("messages in TASKS per environment", ge=1)] = 100_000
    max_weights_bytes: Annotated[
        int, doc("bytes in WEIGHTS per policy; 0 = what two fulls and their chains take", ge=0)
    ] = 0
    max_episodes_bytes: Annotated[int, doc("bytes in EPISODES", ge=1)] = 8 << 30

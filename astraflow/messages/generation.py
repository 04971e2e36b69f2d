"""The supervised token stream between a requester and a policy replica."""

from enum import StrEnum

import msgspec

from astraflow.messages.arrays import Array
from astraflow.messages.message import Message


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample. `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off.

    What an engine doesn't have it refuses; `stop` needs none, for the requester looks for these strings.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()  # added to the model's own end tokens
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()  # the first token with which one of these stands in the text is the last
    seed: int | None = None  # of this call alone; None: what task, policy and turn give
    min_tokens: int = 0  # before these no end token is sampled, and no stop string counts
    presence_penalty: float = 0.0  # taken from the logits of tokens that were sampled before; 0 is off
    frequency_penalty: float = 0.0  # the same, times how often


class TemperatureSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [start, end) were sampled at `temperature`, without top-k and top-p."""

    temperature: float
    start: int
    end: int


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [start, end) were sampled by `version`."""

    version: int
    start: int
    end: int


class GenRequest(Message, frozen=True, kw_only=True):
    """A request for tokens. Subject gen.<policy>.any (work queue; the server keeps its time to live)."""

    id: str  # stable over attempts
    attempt: int
    policy: str
    prompt_tokens: Array  # i4[P]; a continuation carries prompt + tokens so far
    sampling: Sampling
    seed: int
    reply_subject: str
    position: int = 0  # completion tokens that the prompt already holds (a continuation)
    min_version: int = 0  # serve only with this version or newer
    cohort_id: str = ""
    cohort_size: int = 0


class ChunkKind(StrEnum):
    ACCEPTED = "accepted"
    TOKENS = "tokens"
    HEARTBEAT = "heartbeat"  # alive, nothing new
    GOODBYE = "goodbye"  # the replica drains; continue elsewhere
    REFUSED = "refused"  # this request can't be served; `error` says why


class RequestFault(StrEnum):
    """What is wrong with a refused request itself, so that no replica would take it and trying again is in vain."""

    NONE = ""  # nothing that is known: another replica, or a later one, may serve it
    CONTEXT = "context"  # its prompt leaves no room for a token
    REQUEST = "request"  # tokens that the model doesn't have, sampling that means nothing


class GenChunk(Message, frozen=True, kw_only=True):
    """A piece of a reply, core-published to the request's reply subject."""

    request_id: str
    attempt: int
    kind: ChunkKind
    replica: str  # incarnation of the replica
    position: int = 0  # index of the first token here among all completion tokens
    tokens: Array | None = None  # i4[C]; None unless kind is tokens
    logprobs: Array | None = None  # f4[C]
    versions: tuple[VersionSpan, ...] = ()  # in coordinates of all completion tokens
    finish_reason: str = ""  # "" while running; stop | length | abort
    error: str = ""
    fault: RequestFault = RequestFault.NONE  # of what was refused


class GenCancel(Message, frozen=True, kw_only=True):
    """Stop working on a request. Core subject gencancel.<policy>."""

    request_id: str
    attempt: int = -1  # -1 = every attempt
    replica: str = ""  # incarnation of the only replica that is meant; "" = all

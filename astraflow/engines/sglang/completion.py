"""One request at a server: its tokens as they come, and a new attempt where the server dropped it.

It knows no slots and no weights. Invariants: tokens are passed on once, in order, with the version that the server
names for them; a request that the server aborts without being asked (somebody else's abort_all, a lost connection) goes
on where it stopped, as a continuation.

While a request streams the server names the version of the newest tokens only; the exact spans come with the end. A
swap stops the server in between, so an event never holds tokens of two versions unless this process didn't read for
long; where the spans then say otherwise it is counted (`Account.relabelled`).
"""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from astraflow.engines.base import EngineRequest
from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.labels import Labels
from astraflow.engines.streams import EngineReply, RateMeter
from astraflow.errors import EngineError, ForeignWeightsError, RefusedError

TRIES = 4  # attempts in a row without a token
AGAIN_S = 0.5  # before the second one, where the server did not answer; doubles
_OF_THE_REQUEST = frozenset({400, 413, 422})  # HTTP: the request is what is wrong, not the server


class _AbortedError(EngineError):
    """The server gave this request up; others go on."""


@dataclass
class Account:
    """What all requests of one engine have in common."""

    labels: Labels
    rate: RateMeter
    eos_token_ids: tuple[int, ...]
    seeded: bool = False  # the server samples by the seeds that it is given
    exchanges: int = 0  # of weights; part of the key of cached prefixes
    relabelled: int = 0  # tokens that were passed on under another version than the server names in the end
    continued: int = 0  # attempts that the server dropped


class ServerCompletion:
    """Runs one request to its end. What is wrong with the request itself ends its reply with an EngineError."""

    def __init__(self, client: Client, account: Account, request: EngineRequest, reply: EngineReply) -> None:
        self._client = client
        self._account = account
        self.request = request
        self._reply = reply
        self._tokens: list[int] = []  # passed on
        self._stops = frozenset(request.sampling.stop_token_ids)
        self.server_id = ""  # of the attempt that runs

    @property
    def has_begun(self) -> bool:
        """Whether a token of it has come."""
        return bool(self._tokens)

    async def run(self) -> None:
        """Raises EngineError if the server is what is wrong."""
        tries = 0  # in a row without a token
        while True:
            before = len(self._tokens)
            trouble = await self._attempt_or_trouble()
            if self._reply.ended or trouble is None:
                return
            self._account.continued += 1
            tries = 1 if len(self._tokens) > before else tries + 1
            if len(self._tokens) == self.request.sampling.max_new_tokens:  # only its end was lost
                self._reply.put((), (), 0, "length")
                return
            if tries == TRIES:
                if not isinstance(trouble, _AbortedError):
                    raise EngineError(f"{trouble}, {TRIES} times in a row")
                self._reply.fail(f"{trouble}, {TRIES} times in a row")
                return
            await asyncio.sleep(AGAIN_S * 2.0 ** (tries - 1))

    async def _attempt_or_trouble(self) -> EngineError | None:
        """What kept the server from serving it to the end; None: its reply has ended."""
        try:
            await self._attempt()
        except ForeignWeightsError:
            raise
        except RefusedError as exc:
            if exc.status not in _OF_THE_REQUEST:
                return exc
            self._reply.fail(str(exc))
        except EngineError as exc:
            return exc
        return None

    async def _attempt(self) -> None:
        self.server_id = secrets.token_hex(16)  # of one length: a server aborts all ids with the given prefix
        seen = 0
        labels: list[str] = []  # of this attempt's tokens
        async with aclosing(self._client.generate(self._body())) as events:
            async for event in events:
                meta = event["meta_info"]
                tokens, logprobs = _news(event, seen)
                finish = meta.get("finish_reason") or {}
                spans = meta.get("weight_versions") if finish else None
                seen += len(tokens)
                labels += _labels(tokens, meta, spans, start=len(labels))
                if spans:
                    self._account.relabelled += _differing(labels, spans)
                if self._pass_on(tokens, logprobs, labels[-len(tokens) :] if tokens else []):
                    return
                self._finish(finish)

    def _body(self) -> dict[str, Any]:
        request, sampling = self.request, self.request.sampling
        settings: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens - len(self._tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "ignore_eos": sampling.ignore_eos,
            "skip_special_tokens": False,
        }
        if sampling.presence_penalty or sampling.frequency_penalty:
            settings["presence_penalty"] = sampling.presence_penalty
            settings["frequency_penalty"] = sampling.frequency_penalty
        if not sampling.ignore_eos:  # a server that ignores end tokens ignores these too: `_pass_on` looks for them
            settings["stop_token_ids"] = sorted({*self._account.eos_token_ids, *self._stops})
        if self._account.seeded:
            settings["sampling_seed"] = request.seed & ((1 << 63) - 1)
        return {
            "rid": self.server_id,
            "input_ids": [*request.prompt_tokens.tolist(), *self._tokens],
            "sampling_params": settings,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": True,
            "extra_key": self._account.labels.label(self._account.exchanges),  # prefixes of other weights aren't for it
        }

    def _pass_on(self, tokens: list[int], logprobs: list[float], labels: list[str]) -> bool:
        """Whether that was the end: a stop token that the server doesn't look for."""
        stop = next((i for i, token in enumerate(tokens) if token in self._stops), None)
        end = len(tokens) if stop is None else stop + 1
        self._account.rate.add(end)
        self._tokens += tokens[:end]
        start = 0
        while start < end:
            stretch = start
            while stretch < end and labels[stretch] == labels[start]:
                stretch += 1
            finish = "stop" if stop is not None and stretch == end else ""
            version = self._account.labels.version(labels[start])
            if version is None:
                raise ForeignWeightsError(
                    f"the server serves version {labels[start]!r}, which it wasn't given from here"
                )
            self._reply.put(tokens[start:stretch], logprobs[start:stretch], version, finish)
            start = stretch
        return stop is not None

    def _finish(self, finish: Mapping[str, Any]) -> None:
        kind = finish.get("type")
        if kind in ("stop", "length"):
            self._reply.put((), (), 0, str(kind))
        elif kind == "abort" and finish.get("status_code") in _OF_THE_REQUEST:
            raise RefusedError(int(finish["status_code"]), str(finish.get("message")))
        elif kind == "abort":
            raise _AbortedError(f"the server aborted it ({finish.get('message') or 'without a reason'})")


def _news(event: Mapping[str, Any], seen: int) -> tuple[list[int], list[float]]:
    """Tokens and logprobs that weren't seen before, whether the server repeats all of them or not."""
    meta = event["meta_info"]
    count = meta["completion_tokens"] - seen
    tokens, entries = event["output_ids"], meta.get("output_token_logprobs") or []
    if not 0 <= count <= min(len(tokens), len(entries)):
        raise EngineError(f"the server names {count} new tokens, and sent {len(tokens)} with {len(entries)} logprobs")
    tokens, entries = tokens[len(tokens) - count :], entries[len(entries) - count :]
    if [entry[1] for entry in entries] != tokens:
        raise EngineError(f"the server's tokens and logprobs don't belong together: {len(tokens)} and {len(entries)}")
    return tokens, [float(entry[0]) for entry in entries]


def _labels(
    tokens: list[int], meta: Mapping[str, Any], spans: list[Mapping[str, Any]] | None, *, start: int
) -> list[str]:
    """Of each new token: as the spans say where they are known."""
    if not spans:
        return [str(meta["weight_version"])] * len(tokens)
    named = _spread(spans)[start : start + len(tokens)]
    if len(named) != len(tokens):
        raise EngineError(f"the server names the versions of {start + len(named)} of {start + len(tokens)} tokens")
    return named


def _spread(spans: list[Mapping[str, Any]]) -> list[str]:
    return [str(span["version"]) for span in spans for _ in range(span["start"], span["end"])]


def _differing(labels: list[str], spans: list[Mapping[str, Any]]) -> int:
    return sum(one != other for one, other in zip(labels, _spread(spans), strict=True))

"""Continuous batching: which sequences take part in a step, and what comes out of it.

Synchronous and single-threaded; it knows no streams. Sequences join and leave between steps. A step computes one token
of every decoding sequence and, beside them, at most `prefill_tokens` prompt tokens, first come, first served, so a long
prompt never holds up those who decode for longer than one step.
Requests with equal prompts (a group's members) share one prefill: the first computes it, its twins copy the result.
A sequence whose cache is computed anew is prefilled again, prompt and completion, like a prompt that just came; its
twins copy the prompt's part.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from astraflow.engines.base import EngineRequest
from astraflow.engines.sampling import Draw, sample
from astraflow.engines.sequences import BatchModel, Running, Segment

BROKEN = "broken"


@dataclass(frozen=True)
class Sampled:
    """One token of one request. `finish_reason` is "" while the request goes on.

    BROKEN: the model's logits were not finite, so there is no token; the request has ended.
    """

    request_id: str
    token: int
    logprob: float
    finish_reason: str


class Batcher:
    """The requests of one model. Args: slots: sequences that run together, at most."""

    def __init__(self, model: BatchModel, *, slots: int, prefill_tokens: int, eos_token_ids: Sequence[int]) -> None:
        self._model = model
        self._slots = slots
        self._prefill_tokens = prefill_tokens
        self._eos_token_ids = tuple(eos_token_ids)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []  # in order of admission

    @property
    def idle(self) -> bool:
        """There is nothing to compute."""
        return not (self._running or self._waiting)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; it joins at the next step that has a slot and memory for it."""
        self._waiting.append(Running.of(request, self._eos_token_ids))

    def cancel(self, request_id: str) -> bool:
        """Forget a request. Returns: whether it was there."""
        for sequence in self._waiting:
            if sequence.request.id == request_id:
                self._waiting.remove(sequence)
                return True
        for sequence in self._running:
            if sequence.request.id == request_id:
                self._leave(sequence)
                return True
        return False

    def step(self) -> list[Sampled]:
        """Compute one step and sample a token for every sequence that is ready for it."""
        self._admit()
        segments = self._plan()
        logits_SV = self._model.forward(segments)
        ready: list[Running] = []
        rows: list[int] = []
        completed = [item.sequence for item in segments if item.sequence.computed == item.sequence.known]
        for row, sequence in enumerate(completed):
            twins = [twin for twin in self._join_twins(sequence) if twin.computed == twin.known]
            ready += [sequence, *twins]
            rows += [row] * (1 + len(twins))
        if not ready:
            return []
        if len(rows) > len(completed):
            logits_SV = logits_SV[torch.tensor(rows)]
        draws = [
            Draw(item.request.sampling, item.request.seed, item.request.position + item.generated) for item in ready
        ]
        tokens, logprobs = sample(_without_ends(logits_SV, ready, draws), draws)
        return [self._append(*item) for item in zip(ready, tokens, logprobs, strict=True)]

    def recompute(self) -> None:
        """Compute the cache of all running sequences anew before their next token; it takes no time yet."""
        families: dict[bytes, list[Running]] = defaultdict(list)
        for sequence in self._running:
            sequence.stale, sequence.computed = True, 0
            sequence.waits_for_twin, sequence.twins = False, []
            families[sequence.request.prompt_tokens.tobytes()].append(sequence)
        for family in families.values():
            leader = min(family, key=lambda member: member.known)
            leader.twins = [member for member in family if member is not leader]
            for twin in leader.twins:
                twin.waits_for_twin = True

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            sequence = self._waiting[0]
            if not self._model.admit(sequence):
                return
            self._waiting.popleft()
            leader = self._leader(sequence)
            if leader is not None:
                leader.twins.append(sequence)
                sequence.waits_for_twin = True
            self._running.append(sequence)

    def _leader(self, sequence: Running) -> Running | None:
        """Who is computing the same prompt; None: nobody, or nearly all of it is computed already."""
        if sequence.known - sequence.computed <= 1:
            return None
        prompt = sequence.request.prompt_tokens
        for other in self._running:
            same_size = other.known == sequence.known and other.known == other.request.prompt_tokens.size
            if (
                same_size
                and not other.waits_for_twin
                and other.computed < other.known
                and bool((other.request.prompt_tokens == prompt).all())
            ):
                return other
        return None

    def _plan(self) -> list[Segment]:
        segments: list[Segment] = []
        budget = self._prefill_tokens
        for sequence in self._running:
            left = sequence.known - sequence.computed
            if sequence.waits_for_twin:
                continue
            if left == 1:
                count = 1
            else:
                count = min(left, budget)
                budget -= count
            if count:
                self._refresh(sequence)
                segments.append(Segment(sequence, count))
        return segments

    def _refresh(self, sequence: Running) -> None:
        """Drop the cache of older weights. As late as this, because it takes time for each."""
        if sequence.stale:
            self._model.restart(sequence)
            sequence.stale = False

    def _join_twins(self, leader: Running) -> list[Running]:
        """Those who waited for the leader's cache. They have it for as much as they share."""
        twins, leader.twins = leader.twins, []
        for twin in twins:
            self._refresh(twin)
            same = twin.known == leader.known == twin.request.prompt_tokens.size
            shared = twin.known if same else min(twin.request.prompt_tokens.size, twin.known - 1)
            self._model.fork(leader, twin, shared)
            twin.waits_for_twin = False
        return twins

    def _append(self, sequence: Running, token: int, logprob: float) -> Sampled:
        if math.isnan(logprob):
            self._leave(sequence)
            return Sampled(sequence.request.id, token, logprob, BROKEN)
        sequence.tokens[sequence.known] = token
        sequence.known += 1
        finish_reason = ""
        if token in sequence.stop_ids:
            finish_reason = "stop"
        elif sequence.known == sequence.tokens.size:
            finish_reason = "length"
        if finish_reason:
            self._leave(sequence)
        return Sampled(sequence.request.id, token, logprob, finish_reason)

    def _leave(self, sequence: Running) -> None:
        """Free a sequence; if others waited for its prefill, the first of them takes over."""
        self._running.remove(sequence)
        self._model.release(sequence)
        for other in self._running:
            if sequence in other.twins:
                other.twins.remove(sequence)
        if sequence.twins:
            heir, *rest = sequence.twins
            heir.waits_for_twin, heir.twins = False, rest


def _without_ends(logits_SV: torch.Tensor, ready: Sequence[Running], draws: Sequence[Draw]) -> torch.Tensor:
    """The logits, where those who have fewer than `min_tokens` can't end."""
    early = [row for row, draw in enumerate(draws) if draw.position < draw.sampling.min_tokens]
    if not early:
        return logits_SV
    logits_SV = logits_SV.clone()
    for row in early:
        logits_SV[row, [token for token in ready[row].stop_ids if 0 <= token < logits_SV.shape[1]]] = -math.inf
    return logits_SV

"""One server as long as an engine has it: taken, given its weights, watched, and let go.

It knows no requests. Invariant: after `start` the server serves exactly the weights that it was given here, under this
engine's label; whatever shows otherwise ends `watch` with an EngineError.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from astraflow import clock
from astraflow.concurrency import Background
from astraflow.config import EngineSection
from astraflow.engines.sglang.admission import Admission, Pressure
from astraflow.engines.sglang.attach import AttachedServer, server_info, shares_folder
from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.labels import Labels
from astraflow.engines.sglang.launch import LaunchedServer
from astraflow.engines.sglang.metrics import read_pressure
from astraflow.engines.sglang.scratch import Scratch
from astraflow.engines.sglang.updates import APPLY, DeltaWay, DiskWay, TensorsWay, Way, untraceable
from astraflow.errors import EngineError, ForeignWeightsError, NotSharedError, RefusedError
from astraflow.messages.metric_names import (
    POLICY_CACHE_HIT_RATE,
    POLICY_KV_USAGE,
    POLICY_RETRACTED,
    POLICY_SERVER_QUEUED,
    POLICY_SERVER_RUNNING,
    POLICY_SERVER_TOKENS_PER_S,
)
from astraflow.models.facts import read_facts
from astraflow.models.folder import write_model
from astraflow.weights.codec.tensors import LONG_NAMES, HostTensor

_ADAPT_EVERY_S = 1.0
_WATCH_EVERY_S = 2.0
_CALL_WITHIN_S = 60.0
log = logging.getLogger(__name__)
_SECTION_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


class ServerLink:
    """See the module's docstring. After `start`: `client`, `way`, `limit`, `about`, and whether it is `seeded`."""

    client: Client
    way: Way

    def __init__(
        self,
        section: EngineSection,
        files: Mapping[str, bytes],
        tensors: Mapping[str, HostTensor],
        labels: Labels,
    ) -> None:
        self._section = section
        self._files = files
        self._tensors: Mapping[str, HostTensor] = tensors
        self._labels = labels
        self._server: LaunchedServer | AttachedServer | None = None
        self._scratch: Scratch | None = None
        self._admission = Admission(1)
        self._pressure = Pressure()
        self.about = ""
        self.seeded = False

    @property
    def limit(self) -> int:
        """Requests that the server gets at a time."""
        return self._admission.limit

    def given(self, count: int) -> None:
        """The server has this many requests now."""
        self._admission.given(count)

    @property
    def folder(self) -> Path:
        """What this process and the server share."""
        assert self._scratch is not None, "start() comes first"
        return self._scratch.path

    async def start(self, background: Background, version: int, context_length: int) -> int:
        """Take a server and bring it the weights; the longest sequence that it serves. Raises EngineError."""
        size = sum(tensor.data.nbytes for tensor in self._tensors.values())
        self._scratch = await asyncio.to_thread(Scratch, size)
        folder = self.folder
        self._server = server = await self._make_server(folder, version)
        self.client = client = await server.start(background)
        info = await server_info(client)
        ranks = int(info.get("tp_size") or 1)
        self.way = await self._choose_way(info, ranks, folder)
        if isinstance(server, AttachedServer):
            await self.exchange(await asyncio.to_thread(self.way.prepare, self._tensors), version)
        else:
            for path in (folder / "model").glob("*.safetensors"):
                path.unlink()  # it is in the server now
            background.start(self._end_with(server))
        self._tensors = {}
        self.seeded = bool(info.get("enable_deterministic_inference"))
        state = (info.get("internal_states") or [{}])[0]
        most = state.get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
        self._admission = Admission(min(self._section.slots, int(most or self._section.slots)))
        self.about = f"SGLang {info.get('version')} {server.how}, weights by {self.way.name}"
        longest = int(info.get("max_req_input_len") or 0) or context_length
        return min(context_length, int(info.get("context_length") or context_length), longest)

    async def _make_server(self, folder: Path, version: int) -> LaunchedServer | AttachedServer:
        section = self._section.sglang
        if section.url:
            return AttachedServer(section, model_type=read_facts(self._files).model_type)
        model = folder / "model"
        model.mkdir()
        await _to_its_end(write_model, model, self._files, self._tensors)
        largest = max(self._tensors.values(), key=lambda tensor: tensor.data.nbytes)
        dtype = _SECTION_DTYPES.get(self._section.dtype) or LONG_NAMES[largest.dtype]
        args = dict(section.args)
        if self._section.context_length:
            args.setdefault("context_length", self._section.context_length)
        label = self._labels.label(version)
        return LaunchedServer(section, model, folder, args=args, dtype=dtype, label=label)

    async def _choose_way(self, info: Mapping[str, Any], ranks: int, folder: Path) -> Way:
        wanted = self._section.sglang.update
        shared = not self._section.sglang.url or shares_folder(info, self.client)
        has_module = APPLY in (info.get("custom_weight_loader") or [])
        if wanted == "delta" and not (has_module and shared):
            raise EngineError(
                f"engine.sglang.update = 'delta' needs a server on this machine that was started with "
                f"--custom-weight-loader {APPLY} (docs/sglang.md); use 'auto'"
            )
        if has_module and shared and wanted in ("auto", "delta"):
            try:
                whole = await untraceable(self.client, ranks, folder, self._tensors)
            except NotSharedError as exc:
                if wanted == "delta":
                    raise
                log.warning("sglang.folder_not_shared", extra={"why": str(exc)})
                return TensorsWay(self.client, ranks)
            return DeltaWay(self.client, ranks, folder, whole)
        if wanted == "disk" or (wanted == "auto" and shared):
            return DiskWay(self.client, folder, self._files)
        return TensorsWay(self.client, ranks)

    async def exchange(self, prepared: Any, version: int) -> None:
        """Put weights in place between two decode steps. Raises EngineError: the server may serve a mix now."""
        recompute = self._section.on_update == "recompute"
        pause = {"mode": "retract" if recompute else "in_place"}
        named = {"new_version": self._labels.label(version), "abort_all_requests": False}
        if recompute:
            self._admission.excuse()
        await self.client.post("/pause_generation", pause, within_s=_CALL_WITHIN_S)
        await self.way.send(prepared, flush=recompute)
        await self.client.post("/update_weight_version", named, within_s=_CALL_WITHIN_S)
        await self.client.post("/continue_generation", {"torch_empty_cache": False}, within_s=_CALL_WITHIN_S)

    async def checksums(self) -> object:
        """Of the weights in the server's memory, as it says itself; None if it doesn't."""
        try:
            answer = await self.client.post("/weights_checker", {"action": "checksum"}, within_s=_CALL_WITHIN_S)
        except EngineError as exc:
            log.warning("sglang.no_checksums", extra={"why": str(exc)})
            return None
        return [rank["per_gpu_checksum"] for rank in answer["ranks"]]

    async def _end_with(self, server: LaunchedServer) -> None:
        raise EngineError(await server.ended())

    async def watch(
        self, expected: Callable[[], int | None], given: Callable[[], int], rate: Callable[[], float]
    ) -> None:
        """Look after the server for ever. Raises EngineError if it hangs or serves what it wasn't given here.

        Args: expected: the version that it must name, None while it changes; given: requests that it has; rate:
            tokens/s of the last seconds.
        """
        hang_s = self._section.sglang.hang_s
        heard = clock.monotonic()
        while True:
            await asyncio.sleep(min(_WATCH_EVERY_S, hang_s / 4))
            if (version := expected()) is None:
                heard = clock.monotonic()  # health says nothing while it is paused
                continue
            try:
                info = await self.client.get("/model_info", within_s=hang_s)
                if given() and not rate():
                    await self.client.get_text("/health", within_s=hang_s)
                heard = clock.monotonic()
            except EngineError as exc:
                if isinstance(exc, RefusedError) and exc.status in (401, 403):
                    raise
                if clock.monotonic() - heard > hang_s and expected() is not None:
                    raise EngineError(f"the SGLang server hangs: nothing for {hang_s:g} s ({exc})") from exc
                continue
            label = info.get("weight_version")
            if expected() == version and self._labels.version(str(label)) != version:
                raise ForeignWeightsError(
                    f"the SGLang server serves weights {label!r}, it was given version {version} here: it was "
                    "restarted, or somebody else changed its weights"
                )

    async def adapt(
        self, given: Callable[[], int], without_token: Callable[[], int], changed: Callable[[], None]
    ) -> None:
        """Follow the server's pressure for ever.

        Args: given: requests that it has; without_token: of them, those not begun; changed: called after each look.
        """
        while True:
            await asyncio.sleep(_ADAPT_EVERY_S)
            try:
                page = await self.client.get_text("/metrics", within_s=_CALL_WITHIN_S)
            except EngineError:
                continue  # `watch` decides what that means
            self._pressure = read_pressure(page)
            self._admission.observe(self._pressure, given=given(), without_token=without_token())
            changed()

    def gauges(self) -> dict[str, float]:
        """What the server says about itself."""
        said = self._pressure
        return {
            POLICY_KV_USAGE: said.kv_usage,
            POLICY_CACHE_HIT_RATE: said.cache_hit_rate,
            POLICY_SERVER_RUNNING: said.running,
            POLICY_SERVER_QUEUED: said.queued,
            POLICY_SERVER_TOKENS_PER_S: said.tokens_per_s,
            POLICY_RETRACTED: said.retracted,
        }

    async def stop(self) -> None:
        """Let the server go. Idempotent."""
        if hasattr(self, "client"):
            await self.client.close()
        if self._server is not None:
            await self._server.stop()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.remove)
            self._scratch = None


async def _to_its_end(work: Callable[..., None], *args: object) -> None:
    """In a thread; a caller that is cancelled waits until the thread has left the files alone."""
    working = asyncio.get_running_loop().run_in_executor(None, work, *args)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise

"""A SGLang server that somebody else runs: taken over by URL, left running at the end.

It checks that the server can be used for a model; its weights are brought by the engine.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from astraflow.concurrency import Background
from astraflow.config import SglangSection
from astraflow.engines.sglang.client import Client
from astraflow.engines.sglang.supported import check_version
from astraflow.errors import EngineError, RefusedError

ASK_WITHIN_S = 30.0


class AttachedServer:
    """Args: model_type: of the policy's config.json."""

    how = "attached"

    def __init__(self, section: SglangSection, *, model_type: str) -> None:
        self._section = section
        self._model_type = model_type
        self._client: Client | None = None

    async def start(self, background: Background) -> Client:
        """Raises EngineError: it does not answer, has another model, or an SGLang that isn't supported."""
        key = os.environ.get(self._section.key_env, "") if self._section.key_env else ""
        if self._section.key_env and not key:
            raise EngineError(f"engine.sglang.key_env names {self._section.key_env}, which is not in the environment")
        self._client = client = await Client(self._section.url, key).open()
        info = await client.get("/model_info", within_s=ASK_WITHIN_S)
        if info.get("model_type") != self._model_type:
            raise EngineError(
                f"the server at {client.url} serves a {info.get('model_type')} model ({info.get('model_path')}), "
                f"the policy is a {self._model_type} model"
            )
        with suppress(RefusedError):  # there is none, unless whoever had it before died in the middle of an update
            await client.post("/end_weight_update", {}, within_s=ASK_WITHIN_S)
        await client.post("/continue_generation", {"torch_empty_cache": False}, within_s=ASK_WITHIN_S)
        return client

    async def stop(self) -> None:
        """Leaves it running."""
        if self._client is not None:
            await self._client.close()


async def server_info(client: Client) -> Mapping[str, Any]:
    """What a server was started with. Raises EngineError for a version that isn't supported, or data parallelism."""
    info: Mapping[str, Any] = await client.get("/server_info", within_s=ASK_WITHIN_S)
    check_version(str(info.get("version")), f"the server at {client.url}")
    if int(info.get("dp_size") or 1) > 1:
        raise EngineError(
            f"the server at {client.url} has dp_size {info['dp_size']}, and SGLang can't take new weights then: "
            "use more replicas instead"
        )
    return info


def shares_folder(info: Mapping[str, Any], client: Client) -> bool:
    """Whether the server can be expected to see this machine's files."""
    host = client.url.partition("://")[2].rpartition(":")[0]
    return host in ("127.0.0.1", "localhost", "[::1]") and Path(str(info.get("model_path"))).exists()

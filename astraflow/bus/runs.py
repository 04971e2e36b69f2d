"""Which runs a server holds: their records, found by the names of their KV streams.

It looks; only `forget_region` changes something. On a secured server a connection sees only its own run's account.
"""

import asyncio

from astraflow.bus.link import open_session
from astraflow.bus.names import Names, kv_stream_parts
from astraflow.bus.publish import read_stored
from astraflow.bus.session import Session
from astraflow.bus.trust import BusOptions
from astraflow.bus.wiring import RUN
from astraflow.errors import ApiError, LinkLostError, MessageError, NoAnswerError
from astraflow.messages import RunRecord, decode
from astraflow.messages.printable import with_printable_texts

ANSWER_WITHIN_S = 10.0


async def read_runs(session: Session, region: str) -> dict[str, RunRecord]:
    """The runs of a region by name, sorted; one whose record isn't written yet, or can't be read, is left out."""
    found = {}
    for name in sorted(await _stream_names(session)):
        run, place = kv_stream_parts(name) or ("", "")
        if not run or place != region:
            continue
        record = await _record(session, Names(run=run, region=region))
        if record is not None and record.name == run:
            found[run] = record
    return found


async def find_homes(options: BusOptions) -> dict[str, str]:
    """The home region of each run, in the JetStream domain that `options` name; none when it doesn't answer now.

    Raises DeniedError if the server of `options` doesn't let us in.
    """
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            session = await open_session(options, name="find-homes", epoch=0)
            try:
                streams = await _stream_names(session)
            finally:
                await session.close()
    except (LinkLostError, NoAnswerError, TimeoutError):
        return {}
    return dict(found for stream in streams if (found := kv_stream_parts(stream)) is not None)


async def forget_region(options: BusOptions, *, run: str, region: str) -> None:
    """Delete a run's streams in a region away from its home: another run of that name left them."""
    session = await open_session(options, name="forget-region", epoch=0)
    gone = Names(run=run, region=region)
    try:
        for name in await _stream_names(session):
            if name == gone.kv or name.startswith(f"{gone.bucket}_"):
                await session.api(f"STREAM.DELETE.{name}")
    finally:
        await session.close()


async def _stream_names(session: Session) -> list[str]:
    names: list[str] = []
    while True:
        answer = await session.api("STREAM.NAMES", {"offset": len(names)})
        page = answer.get("streams") or []
        names += page
        if not page or len(names) >= answer["total"]:
            return names


async def _record(session: Session, names: Names) -> RunRecord | None:
    try:
        stored = await read_stored(session, names.kv, last_by_subj=f"{names.kv_prefix}{RUN.key()}")
        message = decode(stored.data).message if stored is not None else None
    except (ApiError, MessageError):  # deleted meanwhile; not ours
        return None
    return with_printable_texts(message) if isinstance(message, RunRecord) else None

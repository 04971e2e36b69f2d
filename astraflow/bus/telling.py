"""Events and metrics on whichever bus: what can't be stored in time is counted, never raised."""

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from astraflow import clock
from astraflow.bus.interface import Bus
from astraflow.errors import BusError
from astraflow.messages import Event, Metrics

log = logging.getLogger(__name__)

_EVENT_DEADLINE_S = 2.0
_METRICS_DEADLINE_S = 60.0
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


async def tell_event(bus: Bus, level: str, name: str, text: str, fields: Mapping[str, Any]) -> None:
    """See `Bus.event`."""
    log.log(_LEVELS.get(level, logging.INFO), name, extra={"text": text, "fields": fields})
    event = Event(level=level, name=name, text=text, actor=bus.producer, at=clock.wall(), fields=dict(fields))
    subject = bus.topology.event(level)
    try:
        await bus.publish(subject, event, msg_id=f"event/{uuid.uuid4()}", deadline_s=_EVENT_DEADLINE_S)
    except BusError as exc:
        bus.counters["events.dropped"] += 1
        log.warning("bus.event_dropped", extra={"event": name, "why": str(exc)})


async def tell_metrics(bus: Bus, metrics: Metrics) -> None:
    """See `Bus.metrics`."""
    subject = bus.topology.metric(metrics.kind)
    try:
        await bus.publish(subject, metrics, msg_id=f"metrics/{uuid.uuid4()}", deadline_s=_METRICS_DEADLINE_S)
    except BusError as exc:
        bus.counters["metrics.dropped"] += 1
        log.warning("metrics are dropped", extra={"kind": metrics.kind, "error": str(exc)})

"""The whole run file, and how it is stored on the bus."""

import msgspec
from msgspec import Struct, field

from astraflow.config.bus import BusSection
from astraflow.config.data import DataflowSection, EnvSection, EvalSection, SourceSection
from astraflow.config.gateway import GatewaySection
from astraflow.config.kinds import Name
from astraflow.config.node import NodeSection
from astraflow.config.policy import PolicySection
from astraflow.config.run import RecordSection, RunSection


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run file."""

    run: RunSection
    policies: dict[Name, PolicySection]
    envs: dict[Name, EnvSection]
    sources: dict[Name, SourceSection] = field(default_factory=dict)
    eval: dict[Name, EvalSection] = field(default_factory=dict)
    dataflow: DataflowSection = DataflowSection()
    bus: BusSection = BusSection()
    node: NodeSection = NodeSection()
    gateway: GatewaySection = GatewaySection()
    record: RecordSection = RecordSection()


def to_json(config: RunConfig) -> bytes:
    """The resolved config, as it is stored on the bus."""
    return msgspec.json.encode(config)


def from_json(data: bytes) -> RunConfig:
    """A config that `to_json` wrote."""
    return msgspec.json.decode(data, type=RunConfig)

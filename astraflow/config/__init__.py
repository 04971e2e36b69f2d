"""The run file's schema: one frozen tree, unknown keys rejected, every number with its unit.

    address  addresses as a run file writes them
    bus      the server between the actors, and its bounds
    data     what is played and in which order
    engine   what serves a policy
    gateway  how other people's agents reach a rollout process
    kinds    the kinds of values that several sections share, and `doc`, which describes a key
    loss     what a trainer minimises
    node     how `up` uses a machine
    policy   a model that is served and perhaps trained
    run      what a run is called and what it keeps
    trainer  how a policy learns
    tree     the whole run file, and how it is stored on the bus

Only data: reading TOML, `--set`, nearest-name errors and cross-checks are in `astraflow.runfile`. No environment reads.
A module per part of the run file; a key is described where it is declared.
"""

from astraflow.config.address import host_and_port, is_loopback
from astraflow.config.bus import BusSection
from astraflow.config.data import (
    EXTERNAL,
    SESSIONS,
    DataflowSection,
    EnvSection,
    EvalSection,
    SelectSection,
    SourceSection,
)
from astraflow.config.engine import EngineSection, SglangSection
from astraflow.config.gateway import GatewaySection
from astraflow.config.kinds import Fraction, Name
from astraflow.config.loss import LossSection
from astraflow.config.node import NodeSection
from astraflow.config.policy import SHOWN_TOKENS, PolicySection, SamplingSection, WeightsSection
from astraflow.config.run import RecordSection, RunSection
from astraflow.config.trainer import CriticSection, RanksSection, ReplaySection, TrainerSection
from astraflow.config.tree import RunConfig, from_json, to_json

__all__ = [
    "EXTERNAL",
    "SESSIONS",
    "SHOWN_TOKENS",
    "BusSection",
    "CriticSection",
    "DataflowSection",
    "EngineSection",
    "EnvSection",
    "EvalSection",
    "Fraction",
    "GatewaySection",
    "LossSection",
    "Name",
    "NodeSection",
    "PolicySection",
    "RanksSection",
    "RecordSection",
    "ReplaySection",
    "RunConfig",
    "RunSection",
    "SamplingSection",
    "SelectSection",
    "SglangSection",
    "SourceSection",
    "TrainerSection",
    "WeightsSection",
    "from_json",
    "host_and_port",
    "is_loopback",
    "to_json",
]

"""What this machine has and lacks for the roles of a run. It looks at packages, files and memory."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from astraflow.actors.base.connection import Connection
from astraflow.config import EnvSection, RunConfig
from astraflow.engines.sglang.supported import lacks_sglang
from astraflow.envs.registry import missing_packages
from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.messages.roles import Role
from astraflow.models.hub import is_hub_id
from astraflow.models.resolve import known_models
from astraflow.node.processes import serves_region
from astraflow.paths import user_path

_COPIES = {
    "serve": 3,  # a replica's engine, its shadow, and the version that is being read
    "train": 9,  # bf16 weights and gradients, fp32 master and two moments, one version on its way out
}
Key = TypeVar("Key", bound=str)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a node has. The mappings say why something can't be here; absent = it can."""

    cores: int
    memory_bytes: int
    lacks_engine: Mapping[str, str] = field(default_factory=dict)  # by policy, as the next two
    lacks_learner: Mapping[str, str] = field(default_factory=dict)
    lacks_model: Mapping[str, str] = field(default_factory=dict)  # the base model, which a first trainer needs
    lacks_env: Mapping[str, str] = field(default_factory=dict)  # by environment
    lacks_key: Mapping[Role, str] = field(default_factory=dict)

    def lacks_memory(self, model_bytes: int, purpose: str) -> str:
        """Why a model can't be served or trained here; "" = it fits."""
        needed = _COPIES[purpose] * model_bytes
        if needed <= self.memory_bytes:
            return ""
        return f"needs {needed >> 20:,} MiB of memory, {self.memory_bytes >> 20:,} MiB are free"


def machine(config: RunConfig, *, cores: int, connection: Connection | None = None) -> Machine:
    """This machine, for this run. `connection`: whose credentials may be only for some roles."""
    torch = "" if importlib.util.find_spec("torch") else f"torch isn't installed here; {install_hint('train')}"
    policies = config.policies.items()
    engines = {name: lacks_sglang(policy.engine.sglang) for name, policy in policies if policy.engine.kind == "sglang"}
    engines |= {name: torch for name, policy in policies if policy.engine.kind == "cpu"}
    learners = {name: torch for name, policy in policies if policy.trainer and policy.trainer.learner == "torch"}
    return Machine(
        cores=cores,
        memory_bytes=available_memory(),
        lacks_engine=_given(engines),
        lacks_learner=_given(learners),
        lacks_model=_given({name: lacks_model(policy.model) for name, policy in policies}),
        lacks_env=_given({name: lacks_env(section) for name, section in config.envs.items()}),
        lacks_key=_given({role: _lacks_key(connection, config, role) for role in Role.drain_order()})
        if connection
        else {},
    )


def _given(reasons: Mapping[Key, str]) -> dict[Key, str]:
    return {name: reason for name, reason in reasons.items() if reason}


def lacks_model(model: str) -> str:
    """Why a model can't be loaded here; "" = nothing speaks against it. Nothing of it is read or made."""
    folder = user_path(model)
    if (
        model in known_models()
        or is_hub_id(model)
        or ((folder / "config.json").is_file() and any(folder.glob("*.safetensors")))
    ):
        return ""
    return f"model folder {model} isn't here (looked in {Path.cwd()})"


def lacks_env(section: EnvSection) -> str:
    """Why an environment can't run here; "" = nothing speaks against it. Nothing of it is imported."""
    if missing := missing_packages(section):
        return f"{', '.join(missing)} can't be imported here"
    return ""


def _lacks_key(connection: Connection, config: RunConfig, role: Role) -> str:
    if not serves_region(role, connection.region, config):
        return f"a {role} works only in the run's home region {config.bus.region}"
    try:
        connection.for_role(role)
    except ConfigError as exc:
        return str(exc)
    return ""


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can be used without swapping."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kib) << 10

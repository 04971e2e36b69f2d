"""The engine that a run file asks for. Imports torch only for engines that need it."""

from collections.abc import Mapping

from astraflow.config import EngineSection
from astraflow.engines.base import PolicyEngine
from astraflow.engines.toy import ToyEngine
from astraflow.weights.codec.tensors import HostTensor


def build_engine(
    section: EngineSection,
    files: Mapping[str, bytes],
    tensors: Mapping[str, HostTensor],
    version: int,
    threads: int,
) -> PolicyEngine:
    """An engine that isn't started yet. Raises ConfigError if this model can't be used."""
    if section.kind == "toy":
        return ToyEngine(files, tensors, section=section, version=version)
    if section.kind == "sglang":
        from astraflow.engines.sglang.engine import SglangEngine

        return SglangEngine(files, tensors, section=section, version=version)
    from astraflow.engines.cpu import CpuEngine

    return CpuEngine(files, tensors, section=section, version=version, threads=threads)

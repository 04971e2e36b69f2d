"""Policy engines: what samples tokens for a replica. Importing this needs no torch."""

from astraflow.engines.base import EngineLoad, EngineRequest, PolicyEngine, TokenChunk, TokenStream
from astraflow.engines.factory import build_engine

__all__ = ["EngineLoad", "EngineRequest", "PolicyEngine", "TokenChunk", "TokenStream", "build_engine"]

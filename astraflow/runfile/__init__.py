"""The run file: read, overridden, checked, documented. The schema itself is `astraflow.config`."""

from astraflow.runfile.load import load, resolved

__all__ = ["load", "resolved"]

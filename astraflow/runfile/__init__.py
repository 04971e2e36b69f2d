"""The run file: read, overridden, checked, documented. The schema itself is `astraflow.config`."""

from astraflow.runfile.downloads import downloads
from astraflow.runfile.load import load, resolved
from astraflow.runfile.question_sets import question_sets
from astraflow.runfile.stages import pipeline

__all__ = ["downloads", "load", "pipeline", "question_sets", "resolved"]

"""The run file: read, overridden, checked, documented. The schema itself is `astraflow.config`."""

from astraflow.runfile.answers import unseen_answers
from astraflow.runfile.downloads import downloads
from astraflow.runfile.load import load, resolved
from astraflow.runfile.stages import pipeline

__all__ = ["downloads", "load", "pipeline", "resolved", "unseen_answers"]

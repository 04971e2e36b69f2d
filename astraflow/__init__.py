"""AstraFlow: dataflow-oriented reinforcement learning for LLM agents. Importing it needs no torch."""

__version__ = "0.1.0"

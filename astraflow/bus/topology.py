"""The wiring of one run in one region: its names, and the table's rows with these names in them.

Pure. Invariant: every stream of the run in this region is one row, and every subject that is stored belongs to one.
"""

from collections.abc import Iterable
from functools import lru_cache

from astraflow.bus.names import Names, check_name
from astraflow.bus.region_rows import region_rows
from astraflow.bus.subjects import matches
from astraflow.bus.wiring import Limits, Row, home_rows
from astraflow.config import RunConfig
from astraflow.errors import ConfigError


class Topology(Names):
    """Subjects, streams and consumers of one run in one region. Raises ConfigError for names that can't be tokens."""

    def __init__(
        self,
        *,
        run: str,
        region: str,
        envs: Iterable[str],
        policies: Iterable[str],
        limits: Limits | None = None,
        home: str = "",
    ) -> None:
        """`home`: the run's home region; "" = this one."""
        super().__init__(run=run, region=region, home=home)
        self.envs = tuple(check_name(env, "env") for env in envs)
        self.policies = tuple(check_name(policy, "policy") for policy in policies)
        self.limits = limits or Limits()
        rows = home_rows(self, self.limits, self.envs, self.policies)
        self.rows = rows if self.at_home else region_rows(self, self.there(), rows)
        self.row_of_stream = {row.stream: row for row in self.rows}
        self.row_of = lru_cache(maxsize=4096)(self._find_row)

    def there(self) -> "Topology":
        """The run's names in its home region."""
        return Topology(run=self.run, region=self.home, envs=self.envs, policies=self.policies, limits=self.limits)

    def _find_row(self, subject: str) -> Row:
        """The stream that stores `subject`. Raises ConfigError if none does."""
        for row in self.rows:
            if any(matches(pattern, subject) for pattern in (*row.subjects, *row.parts)):
                return row
        raise ConfigError(f"no stream of run {self.run!r} stores subject {subject!r}; see docs/wiring.md")


def topology_of(config: RunConfig, *, region: str = "") -> Topology:
    """The topology that a run file asks for, as seen from `region`; "" = the run's home."""
    limits = Limits(
        max_tasks=config.bus.max_tasks,
        max_episodes_bytes=config.bus.max_episodes_bytes,
        max_weights_bytes=config.bus.max_weights_bytes,
        ack_wait_s=config.bus.ack_wait_s,
        answer_s=config.bus.answer_s,
        replicas=config.bus.replicas if region in ("", config.bus.region) else 0,  # it is about the home's servers
    )
    return Topology(
        run=config.run.name,
        region=region or config.bus.region,
        home=config.bus.region,
        envs=config.envs,
        policies=config.policies,
        limits=limits,
    )

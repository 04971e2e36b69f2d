"""`astraflow weights ls|verify|export`."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow import clock
from astraflow.cli.arguments import Verbs, add_verb
from astraflow.cli.where import add_where, run_bus, stored_run
from astraflow.errors import ConfigError, WeightsError
from astraflow.named import nearest
from astraflow.paths import user_path

if TYPE_CHECKING:
    from astraflow.bus import Bus
    from astraflow.weights.transfer.catalog import Retained


def add(verbs: Verbs) -> None:
    """Declare the verbs."""
    parser = add_verb(
        verbs,
        "weights",
        help="look at the versions that a run holds, check every byte, or export one",
        example="astraflow weights ls --folder runs/demo",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = add_verb(
        actions,
        "ls",
        help="list the versions: kind, size, share of changed elements, age, step, where they are",
        example="astraflow weights ls --folder runs/demo --json",
    )
    checking = add_verb(
        actions,
        "verify",
        help="read every version from everywhere that it is, and check the digests of parts, files and tensors",
        example="astraflow weights verify --folder runs/demo --policy solver --version 12",
    )
    checking.add_argument("--version", type=_number, metavar="N", help="only this one")
    exporting = add_verb(
        actions,
        "export",
        help="write a version as a Hugging Face folder",
        example="astraflow weights export 12 solver-12 --folder runs/demo",
    )
    exporting.add_argument("version", type=_number, metavar="VERSION", help="its number, or newest")
    exporting.add_argument("target", type=user_path, metavar="DIR", help="the folder to make")
    for action, work in ((listing, _list), (checking, _verify), (exporting, _export)):
        action.add_argument("--policy", default="", help="needed by export if there are several")
        add_where(action)
        action.add_argument("--json", action="store_true", help="the same under stable keys")
        action.set_defaults(run=run, work=work)


def run(args: argparse.Namespace) -> int:
    """Do one of them; the return value is the exit code. Raises ConfigError, BusError, WeightsError."""
    code: int = asyncio.run(args.work(args))
    return code


def _number(text: str) -> int | None:
    """A version; None = the newest."""
    if text == "newest":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a version")
    return int(text)


@asynccontextmanager
async def _opened(args: argparse.Namespace) -> AsyncIterator[tuple["Bus", list[str]]]:
    """The run's bus, and the policies that are meant."""
    async with (
        stored_run(args, command="astraflow weights") as (connection, name),
        run_bus(connection, name, producer="weights") as bus,
    ):
        policies = list(bus.topology.policies)
        if args.policy and args.policy not in policies:
            raise ConfigError(f"there is no policy {args.policy!r}{nearest(args.policy, policies)}")
        yield bus, [args.policy] if args.policy else policies


async def _list(args: argparse.Namespace) -> int:
    from astraflow.weights.transfer.catalog import head_of, retained

    async with _opened(args) as (bus, policies):
        found = {policy: (await head_of(bus, policy), await retained(bus, policy)) for policy in policies}
    if args.json:
        _print_json({policy: [_row(each) for each in versions] for policy, (_, versions) in found.items()})
        return 0
    for policy, (head, versions) in found.items():
        newest = f"version {head.version} is served" if head else "nothing is published yet"
        gone = len({each.version for each in head.recent} - {each.manifest.version for each in versions}) if head else 0
        purged = f"; of its last {len(head.recent)} versions {gone} are purged" if head and gone else ""
        sys.stdout.write(f"{policy}: {newest}{purged}\n")
        sys.stdout.writelines(_line(each) for each in versions)
    return 0


async def _verify(args: argparse.Namespace) -> int:
    from astraflow.weights.transfer.catalog import chosen, retained, verify

    verdicts: dict[str, list[dict[str, Any]]] = {}
    async with _opened(args) as (bus, policies):
        for policy in policies:
            versions = await retained(bus, policy)
            if args.version is not None:
                versions = [chosen(versions, args.version, policy=policy)]
            verdicts[policy] = []
            async for each, faults in verify(bus, policy, versions):
                verdicts[policy].append(_row(each) | {"faults": faults})
                if not args.json:
                    text = "; ".join(faults) if faults else f"right, {_size(each.manifest.size_bytes)}"
                    sys.stdout.write(f"{policy} version {each.manifest.version} {each.manifest.kind}: {text}\n")
    if args.json:
        _print_json(verdicts)
    return int(any(row["faults"] for rows in verdicts.values() for row in rows))


async def _export(args: argparse.Namespace) -> int:
    async with _opened(args) as (bus, policies):
        if len(policies) > 1:
            raise ConfigError(f"say which with --policy: there are {', '.join(policies)}")
        version = await _exported(bus, policies[0], args.version, args.target)
    if args.json:
        _print_json(_row(version) | {"policy": policies[0], "folder": str(args.target)})
    else:
        sys.stdout.write(f"version {version.manifest.version} of {policies[0]} is in {args.target}\n")
    return 0


async def _exported(bus: "Bus", policy: str, number: int | None, target: Path) -> "Retained":
    """The version that is in `target` now: if a live run purges the newest while it is read, a newer one."""
    from astraflow.weights.transfer.catalog import chosen, export, retained

    version = chosen(await retained(bus, policy), number, policy=policy)
    while True:
        try:
            await export(bus, version, target)
        except WeightsError:
            newer = chosen(await retained(bus, policy), number, policy=policy)
            if newer.sequence == version.sequence:
                raise
            version = newer
        else:
            return version


def _row(each: "Retained") -> dict[str, Any]:
    manifest = each.manifest
    return {
        "version": manifest.version,
        "step": manifest.step,
        "batch": manifest.batch,
        "epoch": manifest.epoch,
        "kind": str(manifest.kind),
        "size_bytes": manifest.size_bytes,
        "changed_elements": manifest.changed_elements if manifest.changed_elements >= 0 else None,
        "sparsity": each.sparsity,
        "published_at": each.published_at,
        "places": each.places,
        "loadable": each.full is not None,
    }


def _line(each: "Retained") -> str:
    from astraflow.view.wording import duration

    manifest = each.manifest
    changed = "" if each.sparsity is None else f"{each.sparsity:.2%} changed"
    note = "" if each.full is not None else "  its full is gone"
    return (
        f"  {manifest.version:>7}  step {manifest.step:<7} {manifest.kind:<6} {_size(manifest.size_bytes):>9}  "
        f"{changed:<15} {duration(clock.wall() - each.published_at):>12} old  {', '.join(each.places)}{note}\n"
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.2f} MB" if size_bytes >= 1e4 else f"{size_bytes} B"


def _print_json(value: object) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")

"""`verify_on_ray`: the shards of a pack as tasks of a Ray cluster."""

from collections.abc import Callable
from pathlib import Path

from sa1bpack.arguments import checks_options, choice, local_path
from sa1bpack.cluster.tasks import Died, Needs, run_tasks
from sa1bpack.disk.reading_mode import IO
from sa1bpack.errors import FormatError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.problems import Problem, Report, joined
from sa1bpack.format.side.check import side_folders
from sa1bpack.format.side.spec import is_side, part_names
from sa1bpack.format.verify import verify

# A task reads one shard after the other, and needs no more than this (docs/cluster.md).
NEEDS = Needs(cores=1, memory=500_000_000)


@checks_options
def verify_on_ray(
    root: str | Path,
    *,
    address: str | None = None,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
    io: str = "auto",
    check: Callable[[], None] = lambda: None,
) -> Report:
    """Check a pack or a feature on a Ray cluster, whose nodes see it under the same path.

    address   of the cluster, as in `ray.init`; default: RAY_ADDRESS, or this machine alone
    progress  called as progress(shards done, shards in all); of a feature, its parts
    check     called at least twice a second

    Everything else is as in `verify`, and the report has the same problems, counts and notes. A
    shard whose task died each time it was run is reported as one that could not be read.

    Raises what `verify` raises; MissingPackage without ray, ClusterError if no cluster can be
    reached, and OptionError if ray is initialized in this process already.
    """
    root = local_path("root", root).absolute()
    choice("io", io, IO)
    names = _names(root)
    tasks = {
        name: {"root": root, "quick": quick, "io": io, "part": (k, len(names))}
        for k, name in enumerate(names, 1)
    }
    reports: dict[str, Report] = {}
    for name, report in run_tasks(address, verify, tasks, NEEDS, check=check):
        if isinstance(report, Died):
            shard = name if len(names) > 1 else None
            report = Report((Problem(f"not checked: {report}", shard=shard, denied=True),))
        reports[name] = report
        if progress is not None:
            progress(len(reports), len(names))
    return joined([reports[name] for name in names])


def _names(root: Path) -> list[str]:
    """A name for each part that is a task: of shards, or of parts of a feature."""
    if is_side(root):
        return part_names(root) or [root.name]
    try:
        names = [shard.name for shard in read_manifest(root).shards]
    except FormatError:
        return [root.name]  # reported, or raised, by its only part
    sides = [len(part_names(folder)) for folder in side_folders(root) if is_side(folder)]
    more = range(len(names), max(sides, default=0))
    return [*names, *(f"parts of features, {number}" for number in more)] or [root.name]

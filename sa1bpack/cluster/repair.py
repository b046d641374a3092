"""`repair_on_ray`: a repair whose parts are tasks of a Ray cluster."""

import os
from collections.abc import Iterable
from pathlib import Path

from sa1bpack import interrupts
from sa1bpack.arguments import checks_options, local_path, whole_number
from sa1bpack.cluster.tasks import Died, Needs, once_unlocked, run_tasks
from sa1bpack.format.problems import Problem
from sa1bpack.packing.damage import sources_in_pack
from sa1bpack.packing.estimate import memory_bytes
from sa1bpack.packing.progress import report
from sa1bpack.packing.repair import OWN_FILES, RepairResult, repair
from sa1bpack.progress import step_bar
from sa1bpack.urls import is_url


@checks_options
def repair_on_ray(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] = (),
    *,
    address: str | None = None,
    quick: bool = False,
    links: str | Path | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> RepairResult:
    """Repair a pack on a Ray cluster, whose nodes see it and the sources under the same paths.

    The shards of each source are a task, which does what a part of `repair` does. What concerns the
    whole pack is then repaired here. So is all of a pack whose manifest is lost.

    address
        Of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine alone.
    workers
        Worker processes, and cores, of each task. Default: 1.

    Everything else, and the pack in the end, is as with `repair`. A source whose task died each
    time it was run is in the result's `left`.

    Raises what `repair` raises; MissingPackage without ray, ClusterError if no cluster can be
    reached, and OptionError if ray is initialized in this process already.
    """
    root = local_path("pack", pack)
    workers = 1 if workers is None else whole_number("workers", workers, 1)
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    given = [each if is_url(each) else os.path.abspath(each) for each in given]  # noqa: PTH100
    links = None if links is None else local_path("links", links).absolute()
    options = {"quick": quick, "links": links}
    names = sources_in_pack(root)
    if names is None:
        report(f"{root}: no part can repair it without its manifest: it is repaired here")
        return repair(root, given, **options, progress=progress)
    names = names or [root.name]
    call = {"pack": root.absolute(), "sources": given, "workers": workers, "progress": False}
    tasks = {name: call | options | {"part": (k, len(names))} for k, name in enumerate(names, 1)}
    found: dict[str, RepairResult] = {}
    died: dict[str, str] = {}
    needs = Needs(workers, memory_bytes(workers, 1))
    with step_bar(progress) as advance:
        for name, part in run_tasks(address, repair, tasks, needs, check=interrupts.check):
            if isinstance(part, Died):
                died[name] = f"not checked: {part}; repeat the command"
            else:
                found[name] = part
            advance(len(found) + len(died), len(tasks))
    result = _joined(root, [found[name] for name in tasks if name in found])
    if result.left:  # repaired here, or named again
        shards = [name for name in result.left if name != OWN_FILES]
        last = once_unlocked(
            lambda: repair(root, given, quick=True, shards=shards, links=links, progress=progress),
            interrupts.check,
        )
        result.repaired += last.repaired
        result.notes += last.notes
        result.rewritten, result.left, result.complete = last.rewritten, last.left, last.complete
    result.left |= died
    result.problems += tuple(
        Problem(f"source {name}: {why}", denied=True) for name, why in died.items()
    )
    return result


def _joined(root: Path, parts: list[RepairResult]) -> RepairResult:
    """What all parts did."""
    return RepairResult(
        root,
        tuple(dict.fromkeys(problem for part in parts for problem in part.problems)),
        [name for part in parts for name in part.repaired],
        left={name: reason for part in parts for name, reason in part.left.items()},
        extra=tuple(dict.fromkeys(problem for part in parts for problem in part.extra)),
        notes=[note for part in parts for note in part.notes],
        complete=all(part.complete for part in parts),
        seconds=max((part.seconds for part in parts), default=0.0),
    )

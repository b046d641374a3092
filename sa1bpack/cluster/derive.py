"""`derive_on_ray`: the shards of a feature as tasks of a Ray cluster."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sa1bpack.arguments import choice
from sa1bpack.cluster.tasks import Died, Needs, once_unlocked, run_parts
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.functions import Function, function_name, function_of
from sa1bpack.deriving.maker import FeatureShardMaker
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.deriving.run import derive
from sa1bpack.deriving.target import DeriveResult
from sa1bpack.errors import ClusterError, OptionError
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.options import group_of
from sa1bpack.progress import ProgressOption, check_progress
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.wording import counted

if TYPE_CHECKING:
    from sa1bpack.option_keywords import DeriveKeywords

# Reader threads of a task, and as many cores, which are also those of torch.
THREADS = 4

# Python with torch, and a function with its model; batches come in addition.
BASE_BYTES = 3_000_000_000


@checks_options
@takes_options(DeriveOptions)
def derive_on_ray(
    ds: Dataset,
    name: str | Sequence[str],
    fn: Function,
    *,
    pipeline: Pipeline | None = None,
    options: Mapping[str, Any] | None = None,
    address: str | None = None,
    progress: ProgressOption = None,
    **call: Unpack["DeriveKeywords"],
) -> DeriveResult | tuple[DeriveResult, ...]:
    """Compute a feature on a Ray cluster, whose nodes see the pack under the same path.

    Each shard without rows is a task. One whose process or node dies is run again, up to 5 times;
    feature shards are published complete, and a call that was killed is repeated to resume.

    `device` is "cpu", or "cuda", for which each task asks Ray for a GPU; `threads`, 4 by default,
    are also the cores of a task.

    Args:
        ds, name: as in `derive`.
        fn: a function of a module that every node has, or that is in the current folder on all of
            them; or of the program itself, which is sent.
        pipeline, options: as in `derive`.
        address: address of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine
            alone.
        progress: show a bar on stderr; or a function that is called as function(images done, images
            in all) after each shard. Default: a bar if stderr is a terminal.

    Raises:
        OptionError: as in `derive`, and if ray is initialized in this process already.
        ClusterError: no cluster can be reached, or tasks died each time they were run: their
            shards are named, and have no rows.
        MissingPackage: without ray.
        Whatever else `derive` raises.
    """
    check_progress(progress)
    chosen = _options_of_tasks(call)
    maker = FeatureShardMaker(ds, name, fn, pipeline, options, chosen)
    shards = [shard.identity.name for shard in maker.shards]
    todo = maker.missing(maker.shards)
    lacking = maker.by_feature(todo)
    died: dict[str, Died] = {}
    if todo:
        with maker.loader(todo[0][0]) as loader:
            memory = BASE_BYTES + loader.plan().host_bytes
        needs = Needs(chosen.threads or THREADS, memory, gpus=int(chosen.device == "cuda"))
        sizes = {shard.identity.name: shard.identity.lengths.samples for shard, _ in todo}
        task = {
            "ds": as_dataset(ds),
            "name": name,
            "fn": _as_sent(fn),
            "folder": str(Path.cwd()),
            "pipeline": pipeline,
            "options": options,
            **asdict(chosen),
        }
        _, died = run_parts(address, _make, shards, task, needs, progress, "image", sizes)
    if died:  # once all others are done
        first = min(died)
        raise ClusterError(
            f"{counted(len(died), 'shard')} given up: {', '.join(sorted(died))}; {first}: "
            f"{died[first]}; the rows of all others are kept: repeat the call to make the rest"
        )
    return FeatureShardMaker(ds, name, fn, pipeline, options, chosen).result(lacking)


def _options_of_tasks(call: "DeriveKeywords") -> DeriveOptions:
    """The options of tasks, which run in another folder. Raises OptionError for a device."""
    chosen = group_of(DeriveOptions, call)
    choice("device", chosen.device, ("cpu", "cuda"))
    chosen = replace(chosen, threads=chosen.threads or THREADS)
    if chosen.output is None:
        return chosen
    return replace(chosen, output=chosen.output.absolute())


def _make(folder: str, fn: str | Function, **call: Any) -> None:
    """Make one feature shard: the task."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    named = function_of(fn) if isinstance(fn, str) else fn
    once_unlocked(lambda: derive(fn=named, progress=False, **call))


def _as_sent(fn: Function) -> str | Function:
    """A function by its name, which a node imports; one of the program itself as it is."""
    name = function_name(fn)
    try:
        same = not name.startswith("__main__:") and function_of(name) is fn
    except (OptionError, ImportError):
        return fn
    return name if same else fn

"""`sa1bpack derive`: a side array of a pack, computed by a function."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Literal

from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Job, UserPath
from sa1bpack.cli.output import say
from sa1bpack.errors import OptionError
from sa1bpack.progress import image_bar


@dataclass(frozen=True)
class Rows:
    """The rows of the array, and the batches that they are computed from."""

    axis: Literal["sample", "mask"] = "sample"
    spatial: bool = False
    out: UserPath | None = None
    batch_size: int = 32
    device: str = "cpu"
    threads: int | None = None
    allow_nonfinite: bool = False


def run(
    pack: UserPath,
    name: str,
    *,
    fn: str,
    option: list[str] = (),
    masks: Literal["bits", "runs"] = "bits",
    rows: Rows,
    job: Job,
) -> int:
    """Compute an array with one row per image, or per mask, for a complete pack:
    embeddings of a teacher, saliency, text features, relations of masks. It is
    kept in a folder of its own, by default PACK/side/NAME; the pack does not
    change. sa1bpack.open(PACK, side=[NAME]) adds it to samples and batches.

    Work is published shard by shard. Interrupted? Repeat the command: shards that
    are done are kept, and so are complete batches of the one that is not. A shard
    that was packed again is computed again.

    Args:
        pack (PACK): folder of the pack; with --out also a quoted glob of several packs
        name (NAME): name of the array: its key in samples and batches
        fn (MODULE:FUNCTION): the function that computes rows
        option (KEY=VALUE): keyword argument of the function: JSON, otherwise taken as a
            string; recorded with the array; may be repeated
        axis: a row per image (sample) or per mask
        masks: what the function gets of the masks: their bits on the grid, or the exact
            runs of source pixels
        spatial: rows are (C, h, w) and cover the canvas of the image: a Pipeline transforms
            them with it
        out (SIDE): folder of the array (default: PACK/side/NAME)
        batch_size (N): images per batch
        device (DEVICE): where the batches are: cpu, cuda, cuda:1
        threads (N): number of reader threads (default: chosen by the Loader)
        part (K/N): only every N-th shard, starting with the K-th, such as 3/8 (default:
            all)
        engine: where the work is done: on this machine, or on a Ray cluster whose nodes
            share all folders: each shard is a task with --threads cores, 4, and a GPU for
            cuda
        address (ADDRESS): of the Ray cluster (default: RAY_ADDRESS, or this machine alone)
        allow_nonfinite: store NaN and infinities, too

    examples:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --device cuda
      sa1bpack derive /data/packed depth --fn my_masks:depth --axis mask
      sa1bpack derive /data/packed parents --axis mask --masks runs \\
          --fn sa1bpack.transforms:relation --option name=parents
    a job array of 8 (or torchrun, whose RANK and WORLD_SIZE are used):
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --part 3/8
    on a Ray cluster, with a GPU per task (pip install 'sa1bpack[ray]'):
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --device cuda \\
          --engine ray --address auto
    a pack that is read-only:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed -o /home/teacher

    The function is called with batches of a Loader, as FUNCTION(batch, **options),
    and returns a tensor with one row per image or mask. Modules in the current
    folder are found.
    """
    options = dict(map(_option, option))
    ray, part = job.on_ray(), job.share
    with interrupts.interrupts_held():
        from sa1bpack.dataset.open_pack import open as open_pack
        from sa1bpack.deriving.run import function_of

        if ray:
            from sa1bpack.cluster.derive import derive_on_ray as derive

            where = {"address": job.address, "check": interrupts.check}
        else:
            from sa1bpack.deriving.run import derive

            where = {"part": part}

    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    function = function_of(fn)
    # A part has a row for every sample of its shard.
    ds = open_pack(pack, masks=masks, duplicates="all")
    with image_bar() as show:

        def advance(done: int, total: int) -> None:
            interrupts.check()
            show(done, total)

        outside = None if rows.out else "keep the array outside the pack: --out SIDE"
        more = {"options": options, "progress": advance, **asdict(rows), **where}
        with exits.advising(
            "repeat the command: it resumes after the last complete batch", outside
        ):
            result = derive(ds, name, function, **more)
    say(result)
    return exits.OK


def _option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"option is {text!r}: choose KEY=VALUE, such as scale=0.5")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value

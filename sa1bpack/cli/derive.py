"""`sa1bpack derive`: a side array of a pack, computed by a function."""

import argparse
import json
import os
import sys

from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import part, user_path, whole
from sa1bpack.cli.engine import add_engine, on_ray
from sa1bpack.cli.output import say
from sa1bpack.errors import OptionError
from sa1bpack.progress import image_bar

_DESCRIPTION = """\
Compute an array with one row per image, or per mask, for a complete pack:
embeddings of a teacher, saliency, text features, relations of masks. It is
kept in a folder of its own, by default PACK/side/NAME; the pack does not
change. sa1bpack.open(PACK, side=[NAME]) adds it to samples and batches.

Work is published shard by shard. Interrupted? Repeat the command: shards that
are done are kept, and so are complete batches of the one that is not. A shard
that was packed again is computed again."""

_EPILOG = """\
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
folder are found."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "pack", type=user_path, metavar="PACK",
        help="folder of the pack; with --out also a quoted glob of several packs",
    )  # fmt: skip
    parser.add_argument(
        "name", metavar="NAME", help="name of the array: its key in samples and batches"
    )
    parser.add_argument(
        "--fn", required=True, metavar="MODULE:FUNCTION", help="the function that computes rows"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE",
        help="keyword argument of the function: JSON, otherwise taken as a string; recorded with "
        "the array; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--axis", choices=("sample", "mask"), default="sample",
        help="a row per image (sample) or per mask (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--masks", choices=("bits", "runs"), default="bits",
        help="what the function gets of the masks: their bits on the grid, or the exact runs of "
        "source pixels (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--spatial", action="store_true",
        help="rows are (C, h, w) and cover the canvas of the image: a Pipeline transforms them "
        "with it",
    )  # fmt: skip
    parser.add_argument(
        "--allow-nonfinite", action="store_true", help="store NaN and infinities, too"
    )
    parser.add_argument(
        "-o", "--out", type=user_path, metavar="SIDE",
        help="folder of the array (default: PACK/side/NAME)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=whole, default=32, metavar="N",
        help="images per batch (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="cpu", metavar="DEVICE",
        help="where the batches are: cpu, cuda, cuda:1 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=whole, metavar="N",
        help="number of reader threads (default: chosen by the Loader)",
    )  # fmt: skip
    parser.add_argument(
        "--part", metavar="K/N",
        help="only every N-th shard, starting with the K-th, such as 3/8 (default: all)",
    )  # fmt: skip
    add_engine(parser, "each shard is a task with --threads cores, 4, and a GPU for cuda")
    parser.set_defaults(run=run_derive)


def run_derive(arguments: argparse.Namespace) -> int:
    """Compute the array, and print what was done."""
    job_part, options = part(arguments.part), dict(map(_option, arguments.option))
    ray = on_ray(arguments, "part")
    with interrupts.interrupts_held():
        from sa1bpack.dataset.open_pack import open as open_pack
        from sa1bpack.deriving.named import function_of

        if ray:
            from sa1bpack.cluster.derive import derive_on_ray as derive

            engine = {"address": arguments.address, "check": interrupts.check}
        else:
            from sa1bpack.deriving.run import derive

            engine = {"part": job_part}

    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    fn = function_of(arguments.fn)
    # A part has a row for every sample of its shard.
    ds = open_pack(arguments.pack, masks=arguments.masks, duplicates="all")
    with image_bar() as show:

        def advance(done: int, total: int) -> None:
            interrupts.check()
            show(done, total)

        try:
            result = derive(
                ds, arguments.name, fn, batch_size=arguments.batch_size, device=arguments.device,
                axis=arguments.axis, spatial=arguments.spatial, options=options,
                allow_nonfinite=arguments.allow_nonfinite,
                out=arguments.out, progress=advance, threads=arguments.threads, **engine,
            )  # fmt: skip
        except (KeyboardInterrupt, exits.Terminated, OSError) as error:
            exits.advise(
                error, "repeat the command: it resumes after the last complete batch",
                None if arguments.out else "keep the array outside the pack: --out SIDE",
            )  # fmt: skip
            raise
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

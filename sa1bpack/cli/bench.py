"""`sa1bpack bench`: what this machine does with a pack."""

import argparse
import json

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import real, user_path, whole
from sa1bpack.cli.output import add_json, say, say_json
from sa1bpack.progress import step_line

_DESCRIPTION = """\
Measure your pack on this machine: how fast memory, disk and device are by
themselves (the ceilings), then how many samples per second a Loader and a
DataLoader yield to a loop that does nothing with them, with the pack's pages
dropped (cold) and in the page cache (warm), the seconds to the first batch of
a new process, and the memory of each. Takes about 10 times --seconds, and the
start of six processes, 3 to 10 seconds each.

With --sweep it compares settings too: threads, io, ahead and batch size of a
Loader; workers, prefetched batches and pinning of a DataLoader, some 25
settings, each measured three times in interleaved rounds. The tables have
medians and the memory that each takes; * is the one to choose, ~ those that
differ from the fastest by no more than the noise. The last lines are the
Python that makes both loaders with the best settings."""

_EPILOG = """\
example:
  sa1bpack bench /data/packed --device cuda --batch-size 16
  sa1bpack bench /data/packed --device cuda --batch-size 16 --sweep

Nothing else should run meanwhile. Dropping pages slows down other programs
that read the pack, and nothing else."""

LAYOUTS = ("padded", "flat", "padded_bits", "flat_bits")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_loader_options(parser)
    parser.add_argument(
        "--seconds", type=real, default=5.0, dest="duration", metavar="SECONDS",
        help="per measurement (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--sweep", action="store_true", help="compare settings of both loaders as well"
    )
    parser.add_argument(
        "-o", "--out", type=user_path, metavar="FILE", help="write all figures to a JSON file"
    )
    add_json(parser, "and all figures")
    parser.set_defaults(run=run_bench)


def add_loader_options(parser: argparse.ArgumentParser) -> None:
    """Add the pack, and the options of both loaders."""
    parser.add_argument("pack", type=user_path, metavar="PACK", help="folder of a pack")
    parser.add_argument(
        "--device", default="cpu", help="where batches go: cpu or cuda (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=whole, default=32, metavar="N", help="samples per batch (default: 32)"
    )
    parser.add_argument(
        "--masks", choices=LAYOUTS, default="padded",
        help="masks in the batches, as in Loader (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-masks", type=whole, metavar="N", help="masks per sample at most (default: all)"
    )


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure, and print the tables."""
    from sa1bpack.format.files import replace_file
    from sa1bpack.measuring.bench import bench
    from sa1bpack.report.output import check_output

    out = None if arguments.out is None else check_output(arguments.out, ".json")
    with step_line() as progress:
        result = bench(
            arguments.pack, device=arguments.device, batch_size=arguments.batch_size,
            masks=arguments.masks, max_masks=arguments.max_masks, duration=arguments.duration,
            sweep=arguments.sweep, progress=progress,
        )  # fmt: skip
    if arguments.json:
        say_json(result.as_dict())
    else:
        say(result.as_text())
    if out is not None:
        text = json.dumps(result.as_dict(), indent=1) + "\n"
        replace_file(out, text.encode())
    return exits.OK

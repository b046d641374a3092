"""`sa1bpack tune`: the settings of a loader that suit a pack and this machine."""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import real, user_path
from sa1bpack.cli.bench import add_loader_options
from sa1bpack.progress import step_line
from sa1bpack.wording import printable

_DESCRIPTION = """\
Find the settings that suit your pack and this machine: threads, io, ahead and
batch size of a Loader; workers, prefetched batches and pinning of a
DataLoader. Settings are measured in turn, several rounds of all of them, for a
loop that does nothing with the batches. The table has medians and the memory
that each setting takes; * is the one to choose, ~ those that differ from the
fastest by no more than the noise. A pack of more than half of the memory is
measured cold: its pages are dropped before each measurement."""

_EPILOG = """\
example:
  sa1bpack tune /data/packed --device cuda -o tuned.json --plot tuned.png
then, in your script:
  loader = sa1bpack.Loader(ds, 32, device="cuda", tuned="tuned.json")

Nothing else should run meanwhile."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_loader_options(parser)
    parser.add_argument(
        "--minutes", type=real, default=5.0, metavar="MINUTES",
        help="for all measurements together; a round in progress is completed (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=user_path, metavar="FILE",
        help="write the settings to a JSON file, for tuned=FILE of Loader and make_dataloader",
    )  # fmt: skip
    parser.add_argument("--plot", type=user_path, metavar="FILE", help="draw the table as a PNG")
    parser.set_defaults(run=run_tune)


def run_tune(arguments: argparse.Namespace) -> int:
    """Measure, print the table, and write the files."""
    from sa1bpack.format.files import replace_file
    from sa1bpack.measuring.tune import tune
    from sa1bpack.report.output import check_output

    out = None if arguments.out is None else check_output(arguments.out, ".json")
    plot = None
    if arguments.plot is not None:
        from sa1bpack.measuring.plot import write_plot

        plot = check_output(arguments.plot, ".png", "plot")
    with step_line() as progress:
        result = tune(
            arguments.pack, device=arguments.device, batch_size=arguments.batch_size,
            masks=arguments.masks, max_masks=arguments.max_masks, minutes=arguments.minutes,
            progress=progress,
        )  # fmt: skip
    print(printable(result.as_text()))
    if out is not None:
        replace_file(out, result.settings.as_json())
    if plot is not None:
        write_plot(result, plot)
    return exits.OK

"""`sa1bpack info`: what is in a pack, and what runs here."""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import user_path
from sa1bpack.wording import printable

_DESCRIPTION = """\
Show what a pack holds: images, masks, sizes, rejects, options, versions, and
how many masks its images have. Without a pack: which versions and which image
decoder run here."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the subcommand's parser its description and its arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("pack", type=user_path, metavar="PACK", nargs="?", help="folder of a pack")
    parser.set_defaults(run=run_info)


def run_info(arguments: argparse.Namespace) -> int:
    """Print the summary."""
    if arguments.pack is None:
        from sa1bpack.environment import describe

        print("\n".join(f"{key:<16} {value}" for key, value in describe().items()))
    else:
        from sa1bpack.report.info import info

        print(printable(info(arguments.pack).as_text()))
    return exits.OK

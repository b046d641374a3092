"""`sa1bpack info`: what is in a pack, and the versions in use."""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import user_path
from sa1bpack.wording import printable

_DESCRIPTION = """\
Show what a pack holds: images, masks, sizes, rejects, options, versions, and a
histogram of masks per image. Without a pack: the versions and the image
decoder in use here."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
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

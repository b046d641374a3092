"""`sa1bpack info`: what is in a pack, and the versions in use."""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import one_or_several, user_path
from sa1bpack.wording import printable

_DESCRIPTION = """\
Show what a pack holds: images, masks, sizes, rejects, options, versions, and a
histogram of masks per image. Several packs are summarized as the one dataset
that sa1bpack.open makes of them: image ids that several have are named, and
packs that do not fit together are refused with what differs. Without a pack:
the versions and the image decoder in use here."""

_EPILOG = (
    """examples:
  sa1bpack info /data/packed
  sa1bpack info '/data/packs/*'

"""
    + exits.EPILOG
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "packs", type=user_path, metavar="PACK", nargs="*",
        help="folders of packs, or quoted globs",
    )  # fmt: skip
    parser.set_defaults(run=run_info)


def run_info(arguments: argparse.Namespace) -> int:
    """Print the summary."""
    if not arguments.packs:
        from sa1bpack.environment import describe

        print("\n".join(f"{key:<16} {value}" for key, value in describe().items()))
    else:
        from sa1bpack.report.info import info

        print(printable(info(one_or_several(arguments.packs)).as_text()))
    return exits.OK

"""`sa1bpack info`: what is in a pack, or what this machine has."""

import argparse
from pathlib import Path

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import one_or_several, user_path
from sa1bpack.cli.output import add_json, say, say_json
from sa1bpack.wording import printable

_DESCRIPTION = """\
Show what a pack holds: images, masks, sizes, rejects, options, versions, and a
histogram of masks per image. Several packs are summarized as the one dataset
that sa1bpack.open makes of them: image ids that several have are named, and
packs that do not fit together are refused with what differs. Without a pack:
what this machine has: the PIL in force, versions, SIMD, memory, CUDA, the file
system of the current folder and whether it can be read past the page cache,
and limits on open files, memory maps and asynchronous reads."""

_EPILOG = """\
examples:
  sa1bpack info                       # this machine
  sa1bpack info /data/packed
  sa1bpack info '/data/packs/*'"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "packs", type=user_path, metavar="PACK", nargs="*",
        help="folders of packs, or quoted globs",
    )  # fmt: skip
    add_json(
        parser,
        "complete, counts, options, ...; of several, null with packs; of this machine, null with "
        "machine",
    )
    parser.set_defaults(run=run_info)


def run_info(arguments: argparse.Namespace) -> int:
    """Print the summary."""
    if not arguments.packs:
        from sa1bpack.cli.machine import describe_machine
        from sa1bpack.environment import describe

        found = describe() | describe_machine(Path.cwd())
        if arguments.json:
            say_json({"pack": None, "machine": found})
        else:
            print("\n".join(f"{key:<16} {printable(value)}" for key, value in found.items()))
    else:
        from sa1bpack.report.info import info

        result = info(one_or_several(arguments.packs))
        if arguments.json:
            say_json(result.as_dict())
        else:
            say(result.as_text())
    return exits.OK

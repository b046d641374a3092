"""`sa1bpack info`: what is in a pack, or what this machine has."""

from pathlib import Path

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import one_or_several
from sa1bpack.cli.output import say, say_json


def run(packs: list[str] = (), *, json: bool = False) -> int:
    """Show what a pack holds: images, masks, sizes, rejects, options, versions, and a
    histogram of masks per image. Several packs are summarized as the one dataset
    that sa1bpack.open makes of them: image ids that several have are named, and
    packs that do not fit together are refused with what differs. Without a pack:
    what this machine has: the PIL in force, versions, SIMD, memory, CUDA, the file
    system of the current folder and whether it can be read past the page cache,
    and limits on open files, memory maps and asynchronous reads.

    Args:
        packs (PACK): folders of packs, or quoted globs
        json: print an object on one line in place of the text: pack, complete, counts,
            options, ...; of several, null with packs; of this machine, null with machine

    examples:
      sa1bpack info                       # this machine
      sa1bpack info /data/packed
      sa1bpack info '/data/packs/*'
    """
    if not packs:
        from sa1bpack.cli.machine import describe_machine, describe_packages

        found = describe_packages() | describe_machine(Path.cwd())
        if json:
            say_json({"pack": None, "machine": found})
        else:
            say("\n".join(f"{key:<16} {value}" for key, value in found.items()))
    else:
        from sa1bpack.report.info import info

        result = info(one_or_several(packs))
        if json:
            say_json(result.as_dict())
        else:
            say(result.as_text())
    return exits.OK

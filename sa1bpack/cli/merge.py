"""`sa1bpack merge`: one pack from several."""

import sys

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import UserPath
from sa1bpack.interrupts import interrupts_held
from sa1bpack.progress import byte_bar
from sa1bpack.wording import counted, printable


def run(out: UserPath, packs: list[UserPath]) -> int:
    """Merge packs that were made with the same options, on several machines for
    example, into one. No tar is read and nothing is decoded: the files of OUT are
    hard links to those of the packs where the file system allows it, otherwise
    clones that share their blocks, otherwise copies. The packs are not changed;
    removing them does not affect OUT, whose bytes are those of a pack of all tars.

    Interrupted? Repeat the command. To add packs later, name them in addition to
    the earlier ones.

    Args:
        out (OUT): folder of the new pack
        packs (PACK): folders of the packs, or quoted globs

    examples:
      sa1bpack merge /data/packed /data/machine1 /data/machine2
      sa1bpack merge /data/packed '/data/machines/*'

    To train from several packs without merging them: sa1bpack.open([...]).
    """
    with interrupts_held():  # loads what packing needs
        from sa1bpack.packing.merge import merge

    try:
        with byte_bar() as advance:
            result = merge(out, packs, progress=advance)
    except (OSError, KeyboardInterrupt, exits.Terminated) as error:
        exits.advise(error, "repeat the command to continue")
        raise
    files = [
        f"{count:,} {how}"
        for how, count in (
            ("linked", result.linked),
            ("cloned", result.cloned),
            ("copied", result.copied),
        )
        if count
    ]
    lines = [
        f"{result.root}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')} in "
        f"{counted(result.shards, 'shard')} of {counted(result.packs, 'pack')}; "
        f"files: {', '.join(files) or 'none new'}"
    ]
    if result.before:
        lines.append(f"{counted(result.before, 'shard')} already there")
    if result.repeated:
        lines.append(f"{counted(result.repeated, 'shard')} in several packs, taken once")
    lines += [
        f"side array {name}: {counted(len(shards), 'shard')} without a part"
        for name, shards in result.sides.items()
        if shards
    ]
    print(printable("\n".join(lines)))
    if not result.complete:
        print(
            "sa1bpack: not complete: one of the packs is not; repeat its pack command, and merge "
            "again",
            file=sys.stderr,
        )
        return exits.FAILED
    return exits.OK

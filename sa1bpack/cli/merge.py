"""`sa1bpack merge`: one pack from several."""

from sa1bpack.cli import exits
from sa1bpack.cli.output import say, warn
from sa1bpack.interrupts import interrupts_held
from sa1bpack.progress import byte_bar
from sa1bpack.wording import counted


def run(out: str, packs: list[str]) -> int:
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

    with exits.advising("repeat the command to continue"), byte_bar() as advance:
        result = merge(out, packs, progress=advance)
    new = {"linked": result.linked, "cloned": result.cloned, "copied": result.copied}
    files = ", ".join(f"{count:,} {how}" for how, count in new.items() if count)
    say(
        f"{result.root}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')} in "
        f"{counted(result.shards, 'shard')} of {counted(result.packs, 'pack')}; "
        f"files: {files or 'none new'}"
    )
    if result.before:
        say(f"{counted(result.before, 'shard')} already there")
    if result.repeated:
        say(f"{counted(result.repeated, 'shard')} in several packs, taken once")
    for name, shards in result.sides.items():
        if shards:
            say(f"side array {name}: {counted(len(shards), 'shard')} without a part")
    if not result.complete:
        warn("not complete: one of the packs is not; repeat its pack command, and merge again")
        return exits.FAILED
    return exits.OK

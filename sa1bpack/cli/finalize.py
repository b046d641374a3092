"""`sa1bpack finalize`: one pack of what the parts of a job have packed."""

from shlex import quote

from sa1bpack.cli import exits
from sa1bpack.cli.output import say, say_totals, warn
from sa1bpack.interrupts import interrupts_held
from sa1bpack.wording import counted


def run(out: str) -> int:
    """Make one pack of the shards that the parts of a job (sa1bpack pack --part K/N)
    have published in OUT: write its index, manifest, rejects.jsonl and checksums.
    The pack has the same bytes as if one run had packed all sources. No tar is
    read. If sources are missing, they are named with the parts to repeat; then
    repeat this command, too.

    Args:
        out (OUT): folder of the pack

    examples:
      sa1bpack finalize /data/packed
    after all parts of a job array, if none failed (SLURM):
      sbatch --dependency=afterok:$JOB --wrap 'sa1bpack finalize /data/packed'

    Exit code 1 means that sources are missing, or that the pack has no image; 3
    that a part still works on it.
    """
    with interrupts_held():
        from sa1bpack.packing.parts import finalize

    with exits.refusing_damage(), exits.advising("repeat the same command"):
        result = finalize(out)
    say_totals(result, result.root, of=f", of {counted(result.sources, 'source')}")
    for note in result.notes:
        warn(note)
    for name, reason in result.missing.items():
        warn(f"{name} is missing: {reason}")
    if not result.complete:
        say(f"NOT COMPLETE: {_remedy(result)}")
    elif not result.images:
        warn("no image was packed")
    return exits.OK if result.complete and result.images else exits.FAILED


def _remedy(result) -> str:
    again = f"then sa1bpack finalize {quote(str(result.root))}"
    if not result.parts:
        return f"repeat the pack command of {_some(list(result.missing))}"
    numbers = ",".join(str(number) for number, _ in result.parts)
    return f"repeat --part K/{result.parts[0][1]} for K = {numbers}; {again}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "") if names else "all tars"

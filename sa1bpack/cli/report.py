"""`sa1bpack report`: a report on a pack, as an HTML page."""

from typing import Literal

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import UserPath, one_or_several
from sa1bpack.cli.output import say, warn
from sa1bpack.cli.verify import advice
from sa1bpack.progress import byte_bar
from sa1bpack.report.verification import VERIFY
from sa1bpack.wording import counted

_NAMED = 10  # problems printed to stderr; the page has more


def run(
    packs: list[UserPath],
    *,
    out: UserPath,
    verify: Literal[VERIFY] = "sample",
    samples: int = 12,
    seed: int = 0,
) -> int:
    """Write one HTML page about a pack: its state, counts, distributions of masks and
    images, samples with their masks, options, versions, packing runs and rejects.
    The page is one file, needs no network and runs no script: send it, print it,
    keep it beside an experiment.

    Args:
        packs (PACK): folders of packs, complete or not, or quoted globs; several are one
            dataset
        out (FILE.html): the page; an existing file is replaced
        verify: how much of the pack to check
        samples (N): number of random samples to show, 1 to 400
        seed (N): seed of every random choice

    examples:
      sa1bpack report /data/packed -o report.html
      sa1bpack report /data/packed -o report.html --verify full --samples 24
      sa1bpack report '/data/packs/*' -o report.html

    It takes seconds for a pack of any size: distributions of masks are those of at
    most 20,000 images in 64 shards, and the page says how many. Checking may take
    longer:
      --verify sample   structure, sizes, and the checksums of all but pixels, bits
                        and runs, of up to 8 random shards; 0.5 GB are read for all
                        of SA-1B
      --verify quick    the same for all shards, as `sa1bpack verify --quick`;
                        140 GB are read for all of SA-1B
      --verify full     every byte, as `sa1bpack verify`
      --verify none     nothing, and the page says so

    Exit code 1 means that damage was found; the page is written all the same, and
    names it.
    """
    from sa1bpack.report.write_report import write_report

    with byte_bar() as advance:
        result = write_report(
            one_or_several(packs),
            out,
            verify=verify,
            samples=samples,
            seed=seed,
            progress=advance,
        )
    problems = (*result.verification.problems, *result.unreadable)
    lines = [*problems[:_NAMED]]
    if len(problems) > _NAMED:
        more = counted(len(problems) - _NAMED, "more problem")
        lines.append(f"and {more}; `sa1bpack verify` lists all")
    pack = packs[0] if len(packs) == 1 else "PACK"
    for line in (*lines, *advice(pack, result.verification.problems)):
        warn(line)
    state = "" if result.complete else ", NOT COMPLETE"
    say(f"{result.path}: {counted(result.images, 'image')}, {_verdict(result)}{state}")
    return exits.OK if result.ok else exits.FAILED


def _verdict(result) -> str:
    if any(not problem.denied for problem in result.verification.problems):
        return "DAMAGED"
    if not result.ok:
        return "NOT ALL COULD BE READ"
    how = result.verification.how
    return {
        "none": "not verified",
        "sample": "no problem in the shards that were checked",
        "quick": "no problem in a quick check",
        "full": "sound",
    }[how]

"""`sa1bpack bench`: what this machine does with a pack."""

import json as json_text
from dataclasses import asdict, dataclass
from typing import Literal

from sa1bpack.cli import exits
from sa1bpack.cli.output import say, say_json
from sa1bpack.progress import step_line

LAYOUTS = ("padded", "flat", "padded_bits", "flat_bits")


@dataclass(frozen=True)
class Batches:
    """The batches that both loaders make."""

    device: str = "cpu"
    batch_size: int = 32
    masks: Literal[LAYOUTS] = "padded"
    max_masks: int | None = None


def run(
    pack: str,
    *,
    batches: Batches,
    seconds: float = 5.0,
    sweep: bool = False,
    out: str | None = None,
    json: bool = False,
) -> int:
    """Measure your pack on this machine: how fast memory, disk and device are by
    themselves (the ceilings), then how many samples per second a Loader and a
    DataLoader yield to a loop that does nothing with them, with the pack's pages
    dropped (cold) and in the page cache (warm), the seconds to the first batch of
    a new process, and the memory of each. Takes about 10 times --seconds, and the
    start of six processes, 3 to 10 seconds each.

    With --sweep it compares settings too: threads, io, ahead and batch size of a
    Loader; workers, prefetched batches and pinning of a DataLoader, some 25
    settings, each measured three times in interleaved rounds. The tables have
    medians and the memory that each takes; * is the one to choose, ~ those that
    differ from the fastest by no more than the noise. The last lines are the
    Python that makes both loaders with the best settings.

    Args:
        pack (PACK): folder of a pack
        device (DEVICE): where batches go: cpu or cuda
        batch_size (N): samples per batch
        masks: masks in the batches, as in Loader
        max_masks (N): masks per sample at most (default: all)
        seconds (SECONDS): per measurement
        sweep: compare settings of both loaders as well
        out (FILE): write all figures to a JSON file
        json: print an object on one line in place of the text: pack, and all figures

    example:
      sa1bpack bench /data/packed --device cuda --batch-size 16
      sa1bpack bench /data/packed --device cuda --batch-size 16 --sweep

    Nothing else should run meanwhile. Dropping pages slows down other programs
    that read the pack, and nothing else.
    """
    from sa1bpack.format.files import replace_file
    from sa1bpack.measuring.bench import bench
    from sa1bpack.report.output import check_output

    out = None if out is None else check_output(out, ".json")
    with step_line() as progress:
        more = {"duration": seconds, "sweep": sweep, "progress": progress}
        result = bench(pack, **asdict(batches), **more)
    if json:
        say_json(result.as_dict())
    else:
        say(result.as_text())
    if out is not None:
        text = json_text.dumps(result.as_dict(), indent=1) + "\n"
        replace_file(out, text.encode())
    return exits.OK

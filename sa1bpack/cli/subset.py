"""`sa1bpack subset`: a selection of samples, kept as a small file."""

from pathlib import Path
from typing import Literal

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import UserPath, one_or_several
from sa1bpack.cli.output import say
from sa1bpack.wording import counted

_LONGEST_LINE = 1000  # characters; the file may be anything, such as a tar


def run(
    packs: list[UserPath],
    out: UserPath,
    *,
    where: list[str] = (),
    source: list[str] = (),
    fraction: float | None = None,
    seed: int = 0,
    ids: UserPath | None = None,
    duplicates: Literal["error", "first"] = "error",
) -> int:
    """Select samples of one or several packs, and save their image ids in a small
    file. sa1bpack.open(OUT) opens it for training; `show`, `export` and `subset`
    accept it in place of a pack. No pixels are read or copied.

    A sample must meet all conditions. The samples are in the order of the pack, or
    in the order of --ids.

    Args:
        packs (PACK): folders of packs, quoted globs, or one selection
        out (OUT): file to write; an earlier selection is replaced
        where (CONDITION): keep samples that meet this condition, see below; may be repeated
        source (NAME): keep samples of this tar, such as sa_000012; may be repeated
        fraction (F): keep this fraction of the samples, 0 to 1, by a hash of the image id
        seed (N): seed of --fraction
        ids (FILE): keep the samples with these image ids, one per line
        duplicates: if an image id occurs more than once: fail, or keep its first sample

    conditions:
      NAME SIGN NUMBER, with the signs < <= > >= == !=. A name is mask_count,
      annotation_count, height, width (source pixels) or image_id; or sum, max or
      min of area, predicted_iou, stability_score or annotation_id of the masks.

    examples:
      sa1bpack subset /data/packed many.sel --where 'mask_count >= 50'
      sa1bpack subset /data/packed some.sel --where 'max(area) > 1e6'
      sa1bpack subset /data/packed tenth.sel --fraction 0.1 --seed 7
      sa1bpack subset '/data/packs/*' these.sel --ids ids.txt
    """
    from sa1bpack.arguments import local_path
    from sa1bpack.dataset.open_pack import open as open_pack

    out = local_path("out", out)
    everything = open_pack(one_or_several(packs), duplicates=duplicates)
    ds = everything
    if ids is not None:
        ds = ds[ds.index_of(_read_ids(local_path("ids", ids)))]
    if source:
        ds = ds.source(source)
    if fraction is not None:
        ds = ds.fraction(fraction, seed=seed)
    for condition in where:
        ds = ds.where(condition)
    ds.save(out)
    images = counted(len(everything), "image")
    say(f"{out}: {len(ds):,} of {images}, fingerprint {ds.fingerprint}")
    return exits.OK


def _read_ids(path: Path):
    """int64 (n,): the whole numbers of a text file, in order. Raises OptionError."""
    import numpy as np

    from sa1bpack.errors import OptionError
    from sa1bpack.wording import brief

    line, found = "", []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            while line := file.readline(_LONGEST_LINE):
                line = line.partition("#")[0].strip()
                found += [int(line)] if line else []
        ids = np.array(found, np.int64)
    except OSError as error:
        raise OptionError(f"ids is {str(path)!r}: it cannot be read: {error.strerror}") from None
    except (ValueError, OverflowError):
        raise OptionError(
            f"ids is {str(path)!r}, with {brief(line)}: write one id per line"
        ) from None
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise OptionError(f"ids is {str(path)!r}: {values[counts > 1][0]} is there more than once")
    return ids

"""`sa1bpack export`: the annotations of a pack as JSON."""

from typing import Literal

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import one_or_several
from sa1bpack.cli.output import say
from sa1bpack.wording import counted


def run(
    packs: list[str],
    out: str,
    *,
    format: Literal["sa1b", "coco"] = "sa1b",
    renumber: bool = False,
    source: list[str] = (),
    shard: list[str] = (),
    image_id: list[int] = (),
) -> int:
    """Export the annotations of a pack. As SA-1B's own JSON they are written to
    OUT/<source>/sa_<id>.json, byte for byte as in the tars; masks that filters and
    the cap dropped are counted. As COCO they are written to one instances file
    OUT, which pycocotools loads.

    The pack must have the exact masks (it has, unless it was packed without runs).
    Existing files with the same bytes are left as they are; others are never
    overwritten. Interrupted? Repeat the command: SA-1B files that exist are not
    written again.

    Args:
        packs (PACK): folders of packs, quoted globs, or one selection of `sa1bpack subset`
        out (OUT): folder (sa1b) or file (coco) to write
        format: SA-1B's files, or one file of COCO instances
        renumber: coco: number annotations from 1, and keep SA-1B's ids as sa1b_id
        source (NAME): only images of one tar, such as sa_000012; may be repeated
        shard (NAME): only images of one shard; may be repeated
        image_id (ID): only one image; may be repeated

    examples:
      sa1bpack export /data/packed /data/json
      sa1bpack export /data/packed /data/json --image-id 11223 --image-id 11224
      sa1bpack export /data/packed 12.json --format coco --source sa_000012
      sa1bpack export '/data/packs/*' /data/json
      sa1bpack export many.sel /data/json    # what `sa1bpack subset` saved
    """
    from sa1bpack.errors import OptionError

    chosen = {"sources": source, "shards": shard, "image_ids": image_id}
    if format == "coco":
        from sa1bpack.export.coco import export_coco

        result = export_coco(one_or_several(packs), out, renumber=renumber, **chosen)
    elif renumber:
        raise OptionError("--renumber is for --format coco; SA-1B's files keep their ids")
    else:
        from sa1bpack.export.sa1b import export_sa1b

        result = export_sa1b(one_or_several(packs), out, **chosen)
    say(_summary(result))
    return exits.OK


def _summary(result) -> str:
    already = f", {result.unchanged:,} existed already" if result.unchanged else ""
    state = "" if result.complete else ", NOT COMPLETE"
    lines = [
        f"{result.path}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')}; "
        f"{counted(result.files, 'file')} written{already}{state}"
    ]
    if result.left_out:
        lines.append(
            f"not in the pack: {counted(result.left_out, 'mask')} of these images, dropped by "
            "filters or the cap when it was packed"
        )
    if result.recoded:
        lines.append(
            f"same mask in another text: {counted(result.recoded, 'mask')} whose counts were not "
            "encoded as by COCO"
        )
    if result.unknown_keys:
        keys = ", ".join(sorted(result.unknown_keys))
        lines.append(f"keys that a pack does not store: {keys}")
    return "\n".join(lines)

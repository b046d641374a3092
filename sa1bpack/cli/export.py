"""`sa1bpack export`: the annotations of a pack as JSON."""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import one_or_several, user_path, whole
from sa1bpack.cli.output import say
from sa1bpack.wording import counted, printable

_DESCRIPTION = """\
Export the annotations of a pack. As SA-1B's own JSON they are written to
OUT/<source>/sa_<id>.json, byte for byte as in the tars; masks that filters and
the cap dropped are counted. As COCO they are written to one instances file
OUT, which pycocotools loads.

The pack must have the exact masks (it has, unless it was packed without runs).
Existing files with the same bytes are left as they are; others are never
overwritten. Interrupted? Repeat the command: SA-1B files that exist are not
written again."""

_EPILOG = """\
examples:
  sa1bpack export /data/packed /data/json
  sa1bpack export /data/packed /data/json --image-id 11223 --image-id 11224
  sa1bpack export /data/packed 12.json --format coco --source sa_000012
  sa1bpack export '/data/packs/*' /data/json
  sa1bpack export many.sel /data/json    # what `sa1bpack subset` saved"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "packs", type=user_path, nargs="+", metavar="PACK",
        help="folders of packs, quoted globs, or one selection of `sa1bpack subset`",
    )  # fmt: skip
    parser.add_argument(
        "out", type=user_path, metavar="OUT", help="folder (sa1b) or file (coco) to write"
    )
    parser.add_argument(
        "--format", choices=("sa1b", "coco"), default="sa1b", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--renumber", action="store_true",
        help="coco: number annotations from 1, and keep SA-1B's ids as sa1b_id",
    )  # fmt: skip
    which = parser.add_argument_group("which images (default: all; each may be repeated)")
    which.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME",
        help="those of one tar, such as sa_000012",
    )
    which.add_argument(
        "--shard", action="append", default=[], metavar="NAME", help="those of one shard"
    )
    which.add_argument(
        "--image-id", action="append", default=[], type=whole, metavar="ID", help="one image"
    )
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    """Export, and print how the result differs from the tars."""
    from sa1bpack.errors import OptionError

    chosen = {
        "sources": arguments.source, "shards": arguments.shard, "image_ids": arguments.image_id
    }  # fmt: skip
    if arguments.format == "coco":
        from sa1bpack.export.coco import export_coco

        result = export_coco(
            one_or_several(arguments.packs), arguments.out, renumber=arguments.renumber, **chosen
        )
    elif arguments.renumber:
        raise OptionError("--renumber is for --format coco; SA-1B's files keep their ids")
    else:
        from sa1bpack.export.sa1b import export_sa1b

        result = export_sa1b(one_or_several(arguments.packs), arguments.out, **chosen)
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
        lines.append(f"keys that a pack does not store: {printable(keys)}")
    return "\n".join(lines)

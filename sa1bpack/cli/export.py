"""`sa1bpack export`: the annotations of a pack as JSON."""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import user_path
from sa1bpack.wording import counted, printable

_DESCRIPTION = """\
Write the annotations of a pack out again. As SA-1B's own JSON they go to
OUT/<source>/sa_<id>.json, byte for byte what the tars have, as far as the pack
has it: what filters and the cap left out is counted. As COCO they go to one
instances file OUT, which pycocotools loads.

The pack must have the exact masks (it has, unless it was packed without runs).
Files that are there already are left alone if they have the same bytes, and
never overwritten. Interrupted? Repeat the command: SA-1B files that are
written are not written again."""

_EPILOG = (
    """examples:
  sa1bpack export /data/packed /data/json
  sa1bpack export /data/packed /data/json --image-id 11223 --image-id 11224
  sa1bpack export /data/packed 12.json --format coco --source sa_000012

"""
    + exits.EPILOG
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the subcommand's parser its description and its arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("pack", type=user_path, metavar="PACK", help="folder of the pack")
    parser.add_argument(
        "out", type=user_path, metavar="OUT", help="folder (sa1b) or file (coco) to write"
    )
    parser.add_argument(
        "--format", choices=("sa1b", "coco"), default="sa1b", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--renumber", action="store_true",
        help="coco: number annotations from 1, SA-1B's ids go to sa1b_id",
    )  # fmt: skip
    which = parser.add_argument_group("which images (default: all; each may be repeated)")
    which.add_argument(
        "--source", action="append", default=[], metavar="NAME", help="those of a tar: sa_000012"
    )
    which.add_argument(
        "--shard", action="append", default=[], metavar="NAME", help="those of a shard"
    )
    which.add_argument(
        "--image-id", action="append", default=[], type=int, metavar="ID", help="this image"
    )
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    """Export, and say how far it is what the tars had."""
    from sa1bpack.errors import OptionError

    chosen = {
        "sources": arguments.source, "shards": arguments.shard, "image_ids": arguments.image_id
    }  # fmt: skip
    if arguments.format == "coco":
        from sa1bpack.export.coco import export_coco

        result = export_coco(arguments.pack, arguments.out, renumber=arguments.renumber, **chosen)
    elif arguments.renumber:
        raise OptionError("--renumber is for --format coco; SA-1B's files keep SA-1B's ids")
    else:
        from sa1bpack.export.sa1b import export_sa1b

        result = export_sa1b(arguments.pack, arguments.out, **chosen)
    print(_summary(result))
    return exits.OK


def _summary(result) -> str:
    already = f", {result.unchanged:,} already there" if result.unchanged else ""
    lines = [
        f"{result.path}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')}; "
        f"{counted(result.files, 'file')} written{already}"
    ]
    if result.left_out:
        lines.append(
            f"not in the pack: {counted(result.left_out, 'mask')} of these images, left out by "
            "filters or the cap when it was packed"
        )
    if result.recoded:
        lines.append(
            f"other text, same mask: {counted(result.recoded, 'mask')} whose counts were not "
            "encoded as COCO does"
        )
    if result.unknown_keys:
        keys = ", ".join(sorted(result.unknown_keys))
        lines.append(f"keys that no pack stores: {printable(keys)}")
    return "\n".join(lines)

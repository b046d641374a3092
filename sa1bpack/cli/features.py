"""`sa1bpack attach`: what lies beside the images, from files."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import sa1bpack
from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Help, one_or_several
from sa1bpack.cli.exits import say
from sa1bpack.deriving.options import AttachOptions
from sa1bpack.errors import OptionError
from sa1bpack.format.side.manifest import read_side_manifest
from sa1bpack.wording import brief


def attach(
    pack: Annotated[
        str,
        Help(
            "folder of the pack; with --output also its URL, or a quoted glob of several packs",
            "PACK",
        ),
    ],
    rows: Annotated[
        Sequence[str],
        Help(
            "files of rows: .jsonl, .ndjson, .json, .csv or .tsv (also .gz), .parquet, .tar, or a "
            "folder of these, or of .npy, .npz or .txt files of one image each",
            "ROWS",
        ),
    ],
    *,
    name: Annotated[str, Help("name of the feature: its key in samples and batches", "NAME")],
    shape: Annotated[
        str | None,
        Help(
            "shape of every row, such as 4,32,32; with any in the first place, any,4096, rows may "
            "have any length (default: that of the rows; lists of numbers may have any length)",
            "SHAPE",
        ),
    ] = None,
    options: Annotated[AttachOptions, Help("rows, and where they are")],
) -> int:
    """Make a feature of rows that exist: captions, phrases per mask, features of a
    text encoder, latents, depth maps. Rows are matched by id, in any order: by
    image id, or with --axis mask by annotation id. Ids are numbers, or file
    names: sa_123.jpg, sa_123, and paths that end in these. The feature is kept in
    a folder of its own, by default PACK/side/NAME; the pack does not change.
    sa1bpack.open(PACK, features=[NAME]) adds it to samples and batches.

    Rows are read once, in bounded memory, into temporary files beside the
    feature, which need as much room. Interrupted? Repeat the command: complete
    shards are kept, and compared with the rows.

    examples:
      sa1bpack attach /data/packed captions.jsonl --name caption --value text
      sa1bpack attach /data/packed 'part-*.parquet' --name caption \\
          --key file_name --value caption --missing allow
      sa1bpack attach /data/packed phrases.csv --name phrase --axis mask \\
          --key annotation_id --value phrase --missing allow
    a folder of sa_123.npz files, features (length, 4096) of a text encoder:
      sa1bpack attach /data/packed t5 --name t5 --value caption_feature \\
          --shape any,4096 --dtype float16
    a folder of sa_123.npy files, depth maps (1, h, w) of the photographs:
      sa1bpack attach /data/packed depth --name depth --spatial --covers photograph
    a folder of sa_123.npy files, embeddings (C, h, w) of images with padding:
      sa1bpack attach /data/packed sam --name sam --spatial --covers canvas
    numbers in a table, whose values are text otherwise:
      sa1bpack attach /data/packed scores.csv --name score --value score \\
          --dtype float32
    a key in nested JSON, by its path; a list of objects has several rows:
      sa1bpack attach /data/packed phrases.jsonl --name phrase --axis mask \\
          --key annotations.id --value annotations.caption --missing allow

    Text is stored as text, whole numbers as int64, others as float64 (--dtype),
    lists as rows of any length, arrays as they are. Images without a row are an
    error, or with --missing allow rows that are absent; null and empty cells are
    no rows. Rows of other images are left out, counted and named.

    Exit code 2 means that rows cannot be used: the file and the line are named,
    and nothing was written.
    """
    arguments = asdict(options)
    arguments["shape"] = _shape(shape)
    with interrupts.interrupts_held():
        call = sa1bpack.attach
    ds = sa1bpack.open(one_or_several([pack]), duplicates="all")
    outside = None if options.output else "keep the array outside the pack: --output FOLDER"
    with exits.advising("repeat the command: complete shards are kept", outside):
        result = call(ds, name, list(rows), **arguments)
    spec = read_side_manifest(result.folder).spec
    say(f"{result.folder}: {spec.to_text()}")
    say(replace(result, without_row=0, left_out=0, without_value=0, other_files=0))
    for note in result.notes():
        say(note)
    return exits.OK


def _shape(text: str | None) -> tuple[int | None, ...] | None:
    """(None, 4096) for "any,4096". Raises OptionError."""
    if text is None:
        return None
    sides: list[int | None] = []
    for word in text.split(","):
        if word.strip() == "any" and not sides:
            sides.append(None)
            continue
        if not word.strip().isdecimal() or int(word) < 1:
            raise OptionError(
                f"shape is {brief(text)}: choose numbers from 1 on with commas between them, such "
                "as 4,32,32, or any,32 for rows of any length: only the first place can be any"
            )
        sides.append(int(word))
    return tuple(sides)

"""Decode SA-1B once into memory-mapped Zarr v3 shards, and train from them with no decoding.

>>> import sa1bpack
>>> sa1bpack.pack("/data/sa_*.tar", "/data/packed", workers=16)   # doctest: +SKIP
>>> ds = sa1bpack.open("/data/packed")                            # doctest: +SKIP
>>> for batch in sa1bpack.Loader(ds, batch_size=8, shuffle=True, max_masks=64):   # doctest: +SKIP
...     print(batch)

What to call; `help(sa1bpack.NAME)` has the options and the rest:

- make a pack: pack, estimate; on several machines pack_part, finalize; merge
- check and look: verify, repair, info, show, report, explore, bench
- read: open → Dataset: ds[i], where, split, metadata, column, save_selection
- one tar, no pack: TarDataset, IterableTarDataset
- train: Loader; make_dataloader, or torch's DataLoader with Collate (options of the first two:
  ReadingOptions)
- several data sets: Mix of Loaders
- augment: transforms.Pipeline, called with each batch; transforms.Prompts; Seeded, for other
  libraries' transforms
- order: shuffle=, or an Order: LocalShuffleOrder, NodeShuffleOrder, WeightedOrder, MaskPassOrder;
  Buckets; without a loader OrderedBatches
- over time: LinearSchedule, CosineSchedule, PiecewiseSchedule, FunctionSchedule
- precompute: derive, attach; then open(features=[NAME])
- write out: export_sa1b, export_coco; copy_selection, to a pack of its own
- masks alone: masks.parse_counts, rasterize, mask_boxes, draw_points, relate, ...
"""

from sa1bpack.lazy import names_of

__version__ = "0.1.0"  # the build reads this line

# Scheme of a URL → the module that reads and writes what is there, see `urls.scheme_of`.
SCHEMES = dict.fromkeys(("s3", "gs", "az", "https", "http", "hf", "file"), "sa1bpack.remote.packs")

# The module that draws datasets and batches for notebooks, see `sa1bpack.display.Pictured`.
PICTURES = "sa1bpack.export.show"

# Names that people look for, and what they are called here.
_OTHER_NAMES = {
    "DataLoader": "Loader, or make_dataloader for torch's own",
    "collate": "Collate()",
    "collate_fn": "Collate()",
    "load": "open",
}

# Reading a pack never loads the packer: names are imported on first use.
_public, __getattr__, __dir__ = names_of(__name__, _OTHER_NAMES)
__all__ = ["__version__", *_public]

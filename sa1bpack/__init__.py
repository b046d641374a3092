"""Decode SA-1B once into memory-mapped Zarr v3 shards, and train from them with no decoding.

>>> import sa1bpack
>>> sa1bpack.pack("/data/sa_*.tar", "/data/packed", workers=16)   # doctest: +SKIP
>>> ds = sa1bpack.open("/data/packed")                            # doctest: +SKIP
>>> for batch in sa1bpack.Loader(ds, batch_size=8, shuffle=True, max_masks=64):   # doctest: +SKIP
...     print(batch)

What to call; `help(sa1bpack.NAME)` has the options and the rest:

    make a pack        pack, estimate; on several machines pack_part, finalize; merge
    check and look     verify, repair, info, show, report, bench
    read               open → Dataset: ds[i], where, split, metadata, column, save_selection
    one tar, no pack   TarDataset, IterableTarDataset
    train              Loader; make_dataloader, or torch's DataLoader with Collate
                       (options of the first two: ReadingOptions)
    augment            transforms.Pipeline, called with each batch; transforms.Prompts
    order              shuffle=, or an Order: LocalShuffleOrder, NodeShuffleOrder, WeightedOrder;
                       Buckets; without a loader OrderedBatches
    over time          Linear, Cosine, Steps, Function
    precompute         derive, attach; then open(features=[NAME])
    write out          export_sa1b, export_coco
    masks alone        masks.parse_counts, rasterize, mask_boxes, draw_points, relate, ...
"""

from importlib import import_module

from sa1bpack.lazy import names_of

# Public name → module, imported on first use: reading a pack never loads the packer.
_MODULES = {
    "pack": "sa1bpack.packing.run",
    "PackOptions": "sa1bpack.packing.options",
    "PackResult": "sa1bpack.packing.run",
    "pack_part": "sa1bpack.packing.run",
    "finalize": "sa1bpack.packing.run",
    "FinalizeResult": "sa1bpack.packing.run",
    "estimate": "sa1bpack.packing.estimate",
    "verify": "sa1bpack.format.verify",
    "repair": "sa1bpack.packing.repair",
    "RepairResult": "sa1bpack.packing.repair",
    "merge": "sa1bpack.packing.merge",
    "MergeResult": "sa1bpack.packing.merge",
    "export_sa1b": "sa1bpack.export.annotations",
    "export_coco": "sa1bpack.export.annotations",
    "ExportResult": "sa1bpack.export.annotations",
    "info": "sa1bpack.export.info",
    "show": "sa1bpack.export.show",
    "report": "sa1bpack.export.report",
    "open": "sa1bpack.dataset.open_pack",
    "Dataset": "sa1bpack.dataset.dataset",
    "TarDataset": "sa1bpack.raw.dataset",
    "IterableTarDataset": "sa1bpack.raw.streaming",
    "Collate": "sa1bpack.loading.batch.collate",
    "SequentialOrder": "sa1bpack.loading.order.orders",
    "ShuffleOrder": "sa1bpack.loading.order.orders",
    "LocalShuffleOrder": "sa1bpack.loading.order.orders",
    "NodeShuffleOrder": "sa1bpack.loading.order.orders",
    "WeightedOrder": "sa1bpack.loading.order.orders",
    "Extent": "sa1bpack.loading.order.orders",
    "OrderedBatches": "sa1bpack.loading.order.batches",
    "Buckets": "sa1bpack.loading.order.epoch",
    "Steps": "sa1bpack.schedules",
    "Linear": "sa1bpack.schedules",
    "Cosine": "sa1bpack.schedules",
    "Function": "sa1bpack.schedules",
    "Loader": "sa1bpack.loading.loader",
    "ReadingOptions": "sa1bpack.loading.options",
    "LoadingStats": "sa1bpack.loading.stats",
    "bench": "sa1bpack.measuring.bench",
    "derive": "sa1bpack.deriving.run",
    "attach": "sa1bpack.deriving.run",
    "DeriveResult": "sa1bpack.deriving.target",
    "make_dataloader": "sa1bpack.loading.dataloader",
    "FormatError": "sa1bpack.errors",
    "OptionError": "sa1bpack.errors",
    "ReadError": "sa1bpack.errors",
    "LoaderError": "sa1bpack.errors",
}

# Scheme of a URL → the module that reads and writes what is there, see `urls.scheme_of`.
SCHEMES = dict.fromkeys(("s3", "gs", "https", "http", "file"), "sa1bpack.remote.packs")

# The module that draws datasets and batches for notebooks, see `sa1bpack.display.Pictured`.
PICTURES = "sa1bpack.export.show"

# Names of earlier releases, and those that people look for, and what they are called.
_RENAMED = {
    "DataLoader": "Loader, or make_dataloader for torch's own",
    "HomeShuffleOrder": "NodeShuffleOrder",
    "collate": "Collate()",
    "collate_fn": "Collate()",
    "load": "open",
    "write_report": "report",
}

# Public modules.
_NAMESPACES = ("errors", "masks", "transforms")

__all__ = ["__version__", *sorted(_MODULES), *_NAMESPACES]


_named, __dir__ = names_of(__name__, _MODULES, _RENAMED)


def __getattr__(name: str):
    if name == "__version__":
        return import_module("importlib.metadata").version("sa1bpack")
    return import_module(f"sa1bpack.{name}") if name in _NAMESPACES else _named(name)

"""The pages of the Python API: every public name on one of them."""

import inspect
from collections.abc import Iterator

import sa1bpack

# Page → (title, names). `undocumented` and the test of the site find what is missing here.
TOP = {
    "packing": ("Packing and checking", [
        "pack", "PackOptions", "PackResult", "pack_part", "finalize", "FinalizeResult",
        "estimate", "verify", "repair", "RepairResult", "merge", "MergeResult", "export_sa1b",
        "export_coco", "ExportResult", "copy_selection", "CopyResult",
    ]),
    "looking": ("Looking", ["info", "show", "report", "explore"]),
    "reading": ("Reading", ["open", "Dataset", "TarDataset", "IterableTarDataset"]),
    "order": ("Order and schedules", [
        "SequentialOrder", "ShuffleOrder", "LocalShuffleOrder", "NodeShuffleOrder", "WeightedOrder",
        "MaskPassOrder", "Extent", "OrderedBatches", "Buckets", "PiecewiseSchedule",
        "LinearSchedule", "CosineSchedule", "FunctionSchedule",
    ]),
    "loading": ("Loading", [
        "Loader", "make_dataloader", "ReadingOptions", "Collate", "Seeded", "LoadingStats", "bench",
        "Mix", "MixStats",
    ]),
    "deriving": ("Features", ["derive", "attach", "DeriveResult"]),
}  # fmt: skip
# What functions of a page return, and nobody makes.
RESULTS = {
    "packing": ["packing.estimate.Forecast", "format.problems.Report", "format.problems.Problem"],
    "looking": [
        "export.info.PackInfo", "export.report.ReportResult", "exploring.explore.Explorer",
    ],
    "reading": ["dataset.dataset.SampleInfo"],
    "loading": [
        "adapters.dataloader.PackDataLoader", "loading.plans.LoadingPlan",
        "loading.mix_stats.MixPlan", "loading.mix_stats.SourceStats",
        "measuring.bench.BenchResult",
    ],
    "transforms": ["transforms.masks.crops.MaskCrops"],
}  # fmt: skip
RAY = [
    "cluster.pack.pack_on_ray", "cluster.pack.verify_on_ray",
    "cluster.pack.repair_on_ray", "cluster.derive.derive_on_ray",
]  # fmt: skip
ADAPTERS = {
    "sam2": ["RawDataset"], "torchvision": ["as_tv_tensors"], "lightning": ["DataModule"],
}  # fmt: skip
_WITH_BASES = "\n    options:\n      show_bases: true"
_ERRORS = "The tree of errors; [cause and remedy](../../errors.md) of each have a page."
_RAY = "What `--engine ray` calls; see [clusters](../../cluster.md#ray)."
_NAMES = "Examples run where `packed` is a pack of the sample tar, after:"
_IMPORTS = """```python
import numpy as np
import sa1bpack
import torch
from sa1bpack import transforms as T
```"""


def pages() -> Iterator[tuple[str, str]]:
    """(path, Markdown) of every page."""
    placed = {name for _, names in TOP.values() for name in names}
    others = [name for name in sa1bpack.__all__ if name not in placed and is_documented(name)]
    for page, (title, names) in TOP.items():
        shown = [f"sa1bpack.{name}" for name in (*names, *RESULTS.get(page, ()))]
        yield path_of(page), page_of(title, shown)
    masks = [f"sa1bpack.masks.{name}" for name in sa1bpack.masks.__all__ if name != "LEVELS"]
    yield path_of("masks"), page_of("sa1bpack.masks", masks)
    transforms = [
        f"sa1bpack.transforms.{name}"
        for name in sa1bpack.transforms.__all__
        if callable(getattr(sa1bpack.transforms, name))
    ]
    transforms += [f"sa1bpack.{name}" for name in RESULTS["transforms"]]
    yield path_of("transforms"), page_of("sa1bpack.transforms", transforms)
    ray = [f"::: sa1bpack.{name}" for name in RAY]
    yield path_of("ray"), "\n\n".join(["# On a Ray cluster", _RAY, *ray]) + "\n"
    adapters = [f"sa1bpack.adapters.{module}.{name}" for module, names in ADAPTERS.items()
                for name in names]  # fmt: skip
    yield path_of("adapters"), page_of("sa1bpack.adapters", adapters)
    errors = [f"sa1bpack.errors.{name}" for name, value in vars(sa1bpack.errors).items()
              if inspect.isclass(value)]  # fmt: skip
    shown = [f"::: {name}{_WITH_BASES}" for name in errors]
    yield path_of("errors"), "\n\n".join(["# sa1bpack.errors", _ERRORS, *shown]) + "\n"
    if others:
        yield path_of("others"), page_of("Others", [f"sa1bpack.{name}" for name in others])


def is_documented(name: str) -> bool:
    """True for a name of sa1bpack with a place here: errors have a page of their own."""
    value = getattr(sa1bpack, name)
    error = inspect.isclass(value) and issubclass(value, BaseException)
    return callable(value) and not error


def path_of(page: str) -> str:
    return f"reference/api/{page}.md"


def page_of(title: str, names: list[str]) -> str:
    parts = [f"# {title}", _NAMES, _IMPORTS, *(f"::: {name}" for name in names)]
    return "\n\n".join(parts) + "\n"


def undocumented() -> Iterator[str]:
    """Public names without a docstring."""
    for module in (sa1bpack, sa1bpack.masks, sa1bpack.transforms):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not value.__doc__:
                yield f"{module.__name__}.{name}"

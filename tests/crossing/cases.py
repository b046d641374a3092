"""What a case is, drawn from its seed: any combination that the documents allow."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from absent_numbers import ALL, COCO, SAMPLE_KEYS
from packs import ANY_LENGTH, FEATURES, SCALES, Packs

import sa1bpack
from sa1bpack import transforms
from sa1bpack.format.layout import FITS

RELATIONS = ("intersections", "ious", "containments", "touching", "distances", "children")
RELATIONS += ("centroids", "mask_boxes", "parents", "depths", "levels")
SELECTIONS = ("all", "all", "slice", "shuffled", "repeated", "where", "fraction", "saved")
WHERE_MASKS = "stability_score > 0.96 & bbox.w < 60 | ~(area < 700)"
WITHOUT_SCORES = "bbox.x > 12 & bbox.w < 60 | ~(area < 700)"
ABSENT = (COCO, ALL, ("annotation_id",), ("predicted_iou", "point_coords"), ("stability_score",))
# Option of opening, and of mask_select → the number that it needs.
NEEDS = {"min_iou": "predicted_iou", "min_stability": "stability_score",
         "iou": "predicted_iou", "stability": "stability_score"}  # fmt: skip
LAYOUTS = ("padded", "concat", "padded_bits", "concat_bits")
# Every so many cases has masks from runs and features, read past the page cache from the disk:
# what shares a thread's scratch memory.
HARDEST = 5


@dataclass
class Case:
    """A dataset, and how it is read.

    Attributes:
        layout: fit, pixels and masks of the packs, the number of their scale, the numbers of masks
            that they lack, and whether each of several packs lacks some of these alone.
        several: both packs are opened as one.
        copied: "first", "all": a copy of the first of them as well, and duplicates= is this.
        cache: "": they are local; "new" or "kept": they are read through a cache.
        opened: options of sa1bpack.open.
        selection: which samples.
        where_masks: condition of their masks; "": all.
        workers: of make_dataloader; None: it is a Loader.
        ranks: that share each batch; those after it was resumed.
        order: name or class, with its options.
        reading: options of either.
        own: options of a Loader, or of make_dataloader, alone; those after it was resumed.
        cold: what of the packs is not in the page cache when an epoch begins: "all", "some", "".
        stop: epoch and batches after which it is resumed by other readers; None: it is not.
        duplicate: these are "deepcopy", "pickle": duplicates of the ones before; "": new ones.
        keep: batches are kept until the end of the epoch, and not copied.
        transform: batches go through a Pipeline without steps.
    """

    seed: int
    layout: tuple[str, str, str, int, tuple[str, ...], bool]
    several: bool
    copied: str
    cache: str
    opened: dict[str, Any]
    selection: str
    where_masks: str = ""
    workers: int | None = None
    ranks: tuple[int, int] = (1, 1)
    size: Any = 1
    order: tuple[str, dict[str, Any]] = ("shuffle", {})
    reading: dict[str, Any] = field(default_factory=dict)
    own: tuple[dict[str, Any], ...] = ()
    cold: tuple[str, str] = ("", "")
    stop: tuple[int, int] | None = None
    duplicate: str = ""
    keep: bool = False
    transform: bool = False

    @property
    def absent(self) -> tuple[str, ...]:
        """The numbers that masks lack."""
        return self.layout[4]

    @property
    def weighed(self) -> str:
        """The column that weights of masks are computed from, so that they are a function of it."""
        return "area" if "annotation_id" in self.absent else "annotation_id"

    @property
    def yields_runs(self) -> bool:
        """Samples have runs in place of masks."""
        return self.opened["mask_format"] == "runs" and "mask_size" not in self.opened

    def __str__(self) -> str:
        with np.printoptions(threshold=3, edgeitems=1):
            return repr(self)


def drawn_opening(seed: int) -> Case:
    """The dataset of a case."""
    rng = random.Random(f"{seed} opening")
    fit, pixels = rng.choice(FITS), rng.choice(("rgb", "yuv420"))
    stored, scale = rng.choice(("bits", "runs", "bits+runs")), rng.randrange(len(SCALES))
    if pixels == "yuv420" and fit in ("pad", "squash") and SCALES[scale][0] % 2:
        scale += 1  # planes of a canvas need an even side
    opened: dict[str, Any] = {"mask_format": rng.choice(("bits", "bool"))}
    if "runs" in stored:
        opened["mask_format"] = rng.choice(("bits", "bool", "runs"))
        if rng.random() < 0.4:
            opened["mask_size"] = rng.choice((8, 24, 40, 64))
        if rng.random() < 0.3:
            opened["mask_sampling"] = rng.choice(("area", "center"))
    opened["coordinates"] = rng.choice(("source", "stored"))
    if SCALES[scale][0] % 2 == 0:
        opened["pixels"] = rng.choice(("rgb", "stored"))
    if rng.random() < 0.25:
        opened["verify_checksums"] = True
    if rng.random() < 0.3:
        rules = {"min_area": 300, "max_area_frac": 0.5, "min_iou": 0.93, "min_stability": 0.95}
        opened |= {name: rules[name] for name in rng.sample(list(rules), rng.randint(1, 2))}
    if rng.random() < 0.6:
        opened["features"] = rng.sample([*FEATURES, *ANY_LENGTH], rng.randint(1, 3))
    if seed % HARDEST == 0:
        stored = rng.choice(("runs", "bits+runs"))
        opened["mask_format"] = rng.choice(("runs", "runs", "bool"))
        if opened["mask_format"] == "bool":
            opened["mask_size"] = rng.choice((24, 40))
        else:
            opened.pop("mask_size", None)
        opened.setdefault("features", rng.sample([*FEATURES, *ANY_LENGTH], 2))
    several = rng.random() < 0.4
    absent = drawn_absent(seed, opened)
    differ = several and len(absent) > 1 and seed % 3 > 0
    if differ:
        opened["layouts"] = "shared"
    where_masks = WITHOUT_SCORES if "stability_score" in absent else WHERE_MASKS
    return Case(
        seed,
        (fit, pixels, stored, scale, absent, differ),
        several=several,
        copied=rng.choice(("", "", "", "", "first", "all")),
        cache=rng.choice(("", "", "", "new", "kept")),
        opened=opened,
        selection=rng.choice(SELECTIONS),
        where_masks=rng.choice(("", "", "", where_masks)),
    )


def drawn_absent(seed: int, opened: dict[str, Any]) -> tuple[str, ...]:
    """The numbers that masks lack; what needs them is taken out of the options of opening."""
    rng = random.Random(f"{seed} absent")
    absent = rng.choice(ABSENT) if rng.random() < 0.4 else ()
    for name, number in NEEDS.items():
        if number in absent:
            opened.pop(name, None)
    if "annotation_id" in absent and "features" in opened:  # rows of masks are attached by id
        axes = {name: spec[0] for name, spec in (FEATURES | ANY_LENGTH).items()}
        opened["features"] = [name for name in opened["features"] if axes[name] == "sample"]
        if not opened["features"]:
            del opened["features"]
    return absent


def opened_dataset(case: Case, packs: Packs, folder: Path) -> sa1bpack.Dataset:
    """The dataset of a case. What it leaves goes into `folder`."""
    rng = np.random.default_rng([case.seed, 1])
    roots = packs.of(*case.layout)
    roots = roots if case.several else [roots[case.seed % 2]]
    if case.copied:
        roots = [*roots, packs.copy_of(roots[0])]
    for root in roots:
        for name in case.opened.get("features", ()):
            packs.attach(root, name)
    more: dict[str, Any] = {"duplicates": case.copied} if case.copied else {}
    paths: list[Any] = list(roots)
    if case.cache:
        more["cache_dir"] = packs.folder / "cache" if case.cache == "kept" else folder / "cache"
        paths = [root.as_uri() for root in roots]
    ds = sa1bpack.open(paths, **case.opened, **more)
    if case.where_masks:
        ds = ds.where_masks(case.where_masks)
    if case.selection == "slice":
        return ds[1::2]
    if case.selection == "repeated":
        return ds[rng.integers(0, len(ds), rng.integers(1, 2 * len(ds)))]
    if case.selection in ("where", "fraction"):
        where = case.selection == "where"
        part = ds.where("mask_count > 2") if where else ds.fraction(0.6, seed=case.seed)
        return part if len(part) else ds
    if case.selection in ("shuffled", "saved"):
        part = ds[rng.permutation(len(ds))[: rng.integers(2, len(ds) + 1)]]
        if case.selection == "shuffled" or case.copied == "all":  # ids are what is saved
            return part
        part.save_selection(folder / "part.sel")
        return sa1bpack.open(folder / "part.sel", **case.opened, **more)
    return ds


def draw_reading(case: Case, ds: sa1bpack.Dataset, direct: bool) -> None:
    """Draw how the dataset of a case is read.

    Args:
        direct: whether the file system can be read past the page cache.
    """
    rng = random.Random(f"{case.seed} reading")
    hardest = case.seed % HARDEST == 0
    if rng.random() < 0.25 and not hardest:
        case.workers = 2 if rng.random() < 0.1 else 0
    case.order = _drawn_order(rng, ds)
    samples = case.order[1].get("samples", len(ds))
    if case.order[0] == "passes":
        samples = int((-(-ds.column("mask_count") // case.order[1]["masks"])).sum())
    if samples > 1:
        case.ranks = rng.choice(((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (1, 2)))
    ranks = max(case.ranks)

    def size() -> int:
        return ranks * rng.randint(1, max(min(samples, 9) // ranks, 1))

    case.size = size()
    if rng.random() < 0.25:
        sizes = case.size, size()
        by_step = sa1bpack.PiecewiseSchedule(sizes[0], {rng.randint(1, 4): sizes[1]}, by="step")
        case.size = rng.choice((list(sizes), by_step))
    last = rng.choice((None, None, "drop_last", "pad_last"))
    if ranks > 1 and last is None:
        changes = not isinstance(case.size, int)
        if changes or 0 < samples % case.size < ranks:  # a rank would have an empty batch
            last = rng.choice(("drop_last", "pad_last"))
    reading = case.reading = {} if last is None else {last: True}
    reading["mask_layout"] = rng.choice(LAYOUTS[:2] if case.yields_runs else LAYOUTS)
    one, two = rng.randint(1, 8), rng.randint(1, 20)
    changing = [one, two], [one, None], sa1bpack.LinearSchedule(one, two, steps=5)
    most = rng.choice((None, None, one, one, *changing))
    if most is not None:
        reading["max_masks"], reading["mask_select"] = most, _drawn_choice(rng, case, ds)
        limited = not (isinstance(most, list) and None in most)
        if limited and reading["mask_layout"].startswith("padded"):
            reading["pad_to_max"] = rng.random() < 0.4
    if case.order[0] == "passes":
        reading |= {"max_masks": case.order[1]["masks"], "mask_select": "in_turn"}
        reading.pop("pad_to_max", None)
    if rng.random() < 0.3:
        names = rng.sample(RELATIONS, rng.randint(1, 3))
        relate = transforms.Relate(names, share=rng.choice((0.6, 0.9)), neighbors=4)
        reading["relations"] = rng.choice((names, relate))
    if case.order[0] != "by_node" and rng.random() < 0.3:
        numbers = np.random.default_rng(case.seed).random(len(ds))
        kinds = ["mask_count", numbers, sa1bpack.Buckets(ds, "mask_count", batches=2)]
        reading["bucket_by"] = rng.choice(
            kinds if case.layout[0] == "squash" else [*kinds, "aspect"]
        )
    elif case.order[0] != "by_node" and rng.random() < 0.3 and not _by_step(case.size):
        _draw_classes(rng, case, ds)
    if rng.random() < 0.15:
        reading["on_error"] = "drop"
    case.own = tuple(_drawn_own(rng, case.workers, direct) for _ in range(2))
    case.cold = rng.choice(("all", "all", "some", "")), rng.choice(("all", "some", ""))
    if hardest:
        case.cold = "all", case.cold[1]
        if direct:
            case.own = tuple(own | {"io": "direct"} for own in case.own)
    case.stop = (rng.randrange(2), rng.randint(1, 5)) if rng.random() < 0.35 else None
    case.duplicate = random.Random(f"{case.seed} duplicate").choice(("", "deepcopy", "pickle"))
    case.keep, case.transform = rng.random() < 0.4, rng.random() < 0.3
    if rng.random() < 0.3:
        reading["fields"] = _drawn_fields(rng, case, ds)
        case.transform = False
    if getattr(reading.get("bucket_by"), "exact", False):
        case.transform = False  # the grid of masks would be that of the class
    if case.layout[0] == "scale_down":
        case.transform = False  # a Pipeline enlarges images that are smaller than the canvas
    if case.workers is None and rng.random() < 0.3:
        ahead = {"pipeline": as_it_is, "pipeline_threads": rng.randint(1, 3)}
        case.own = tuple(own | ahead for own in case.own)


def _drawn_fields(rng: random.Random, case: Case, ds: sa1bpack.Dataset) -> list[str]:
    """Some keys of a batch, with those that the other options need."""
    masks = "runs" if case.yields_runs else "masks"
    features = [feature.name for feature in ds.spec.features]
    known = ["images", masks, "mask_counts", "sizes", "bboxes", "areas"]
    if "stability_score" not in case.absent:
        known.append(SAMPLE_KEYS["stability_score"])
    if features and rng.random() < 0.6:
        known = features
    fields = rng.sample(known, rng.randint(1, min(len(known), 3)))
    if "relations" in case.reading:
        fields.append(masks)
    elif "max_masks" in case.reading:
        fields.append("mask_counts")
    return fields


def _by_step(size: Any) -> bool:
    return isinstance(size, sa1bpack.PiecewiseSchedule)


def _draw_classes(rng: random.Random, case: Case, ds: sa1bpack.Dataset) -> None:
    """Let every batch have images of one class of aspect."""
    ratios = rng.sample((0.4, 0.7, 0.9, 1.1, 1.5, 2.5), rng.randint(1, 5))
    buckets = sa1bpack.Buckets(ds, aspects=ratios, exact=True, multiple=rng.choice((2, 16)))
    largest = max(case.size) if isinstance(case.size, list) else case.size
    draws = case.order[0] in ("weighted", "passes")
    too_few = buckets.class_counts.max() < largest or draws
    if "drop_last" in case.reading and too_few:
        del case.reading["drop_last"]
    if max(case.ranks) > 1 and "drop_last" not in case.reading:
        case.reading["pad_last"] = True
    if case.opened.get("pixels") == "stored" and ds.layout.image_size % 2:
        return
    case.reading["bucket_by"] = buckets


def as_it_is(batch: dict) -> dict:
    """The batch, for threads that call a pipeline."""
    return batch


def _drawn_order(rng: random.Random, ds: sa1bpack.Dataset) -> tuple[str, dict[str, Any]]:
    seed = {"seed": rng.choice((0, 7, 2**64 - 1))}
    kinds = ["shuffle", "shuffle", "sequential", "local", "by_node", "weighted"]
    if ds.column("mask_count").any() and len(set(ds.column("image_id").tolist())) == len(ds):
        kinds.append("passes")
    kind = rng.choice(kinds)
    if kind == "sequential":
        return kind, {}
    if kind == "local":
        return kind, seed | rng.choice(({}, {"window": 2, "block": 2}))
    if kind == "by_node":
        return kind, seed | rng.choice(({}, {"nodes": 3}))
    if kind == "passes":
        return kind, seed | {"masks": rng.randint(1, 12), "shuffle": rng.random() < 0.7}
    if kind == "weighted":
        weights = np.random.default_rng(rng.randrange(99)).integers(0, 3, len(ds))
        weights[0] = 1
        return kind, seed | {"weights": weights, "samples": rng.randint(2, 2 * len(ds))}
    return kind, seed


def _drawn_choice(rng: random.Random, case: Case, ds: sa1bpack.Dataset) -> Any:
    ids = ds.mask_column(case.weighed)
    weights = ids % 5 if (ids % 5).any() else np.ones(len(ids))
    kinds = ["largest", "iou", "stability", "random", "balanced", by_box, weights.astype(float)]
    kinds = [kind for kind in kinds if callable(kind) or _has(case, kind)]
    return rng.choice((*kinds, [rng.choice(kinds), rng.choice(kinds)]))


def _has(case: Case, kind: Any) -> bool:
    """Masks have the number that a choice needs."""
    return not isinstance(kind, str) or NEEDS.get(kind) not in case.absent


def by_box(columns: Any) -> np.ndarray:
    """Weights of which some are 0, of coordinates, which may be scaled, and of the image."""
    return np.maximum(columns["bbox"][:, 2] - 20, 0) * (1 + columns["image_id"] % 3)


def _drawn_own(rng: random.Random, workers: int | None, direct: bool) -> dict[str, Any]:
    if workers is not None:
        return {"num_workers": workers}
    modes = ("direct", "direct", "cached", "auto") if direct else ("cached", "auto")
    own = {"io": rng.choice(modes), "threads": rng.randint(1, 4)}
    return own | rng.choice(({}, {"prefetch": rng.randint(1, 4)}))

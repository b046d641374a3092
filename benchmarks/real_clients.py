"""EdgeSAM's or SAM 2's own dataset classes, from a clone, against a pack of the same images.

    python benchmarks/real_clients.py CLONE TAR... [--images 11] [--prompts 16] [--batch 8]
                                      [--rounds 5] [--json FILE]

CLONE is a folder with https://github.com/chongzhou96/EdgeSAM or
https://github.com/facebookresearch/sam2, beside this one: their own modules are imported from
there, and nothing of theirs is here. What is not on the way of their data and not installed (or
would import their models) is replaced, and the report says what. They need torchvision, which is
in the environment that `make frameworks` makes: `.venv-frameworks/bin/python`.

Photographs of the tars are written as the folders that they read, and packed. Then

- what they give is compared, photograph by photograph, all masks, without anything random: images,
  boxes, points, masks, size before padding, embeddings of a teacher (EdgeSAM); images and masks
  (SAM 2). Largest and mean difference, and why there is one;
- what it costs is measured: the process's CPU milliseconds per sample, on one core (one thread of
  torch, one reader), files in the page cache; medians over rounds in which the ways take turns.
  Theirs are called sample by sample in this process, without worker processes, whose transfers
  would come on top; ours are Loader and Pipeline in batches of `--batch`. Both end with the tensors
  of a sample on the CPU, images in float32.
"""

import argparse
import importlib
import importlib.util
import json
import random
import statistics
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from pipeline import measure, read_photos

import sa1bpack
from sa1bpack import Dataset, masks, transforms
from sa1bpack.adapters.sam2 import RawDataset
from sa1bpack.cli.machine import describe_packages

SIDE = 1024
ROW = (256, 64, 64)  # of SAM's embeddings
OBJECTS = 3  # that SAM 2's training draws of each image

EDGESAM, SAM2 = "EdgeSAM", "SAM 2"
# What each client's clone must have; the first file tells which client it is.
FILES = {
    EDGESAM: (
        "training/data/sa1b_dataset.py",
        "training/data/augmentation/dataset_wrapper.py",
        "edge_sam/utils/transforms.py",
    ),
    SAM2: (
        "training/dataset/vos_raw_dataset.py",
        "training/dataset/vos_dataset.py",
        "training/dataset/vos_sampler.py",
        "training/dataset/transforms.py",
    ),
}


def client_of(clone: Path) -> str:
    """The client whose clone it is. Ends the program if files of it are missing."""
    for client, files in FILES.items():
        if (clone / files[0]).is_file():
            missing = [name for name in files if not (clone / name).is_file()]
            if missing:
                raise SystemExit(
                    f"{clone} looks like {client}, but has no {', '.join(missing)}: another "
                    "version? This script knows EdgeSAM b53372c and SAM 2 2b90b9f"
                )
            return client
    wanted = " or ".join(f"{files[0]} ({client})" for client, files in FILES.items())
    raise SystemExit(f"{clone} has no {wanted}: give the folder of a clone")


# ---------------------------------------------------------------------------------- their modules


@dataclass
class Theirs:
    """Imports modules of a clone, and keeps what stands in for others.

    Attributes:
        replaced: lines of the report.
    """

    clone: Path
    replaced: list[str] = field(default_factory=list)

    def stand_in(self, name: str, why: str, **attributes: object) -> None:
        """A module with these attributes in place of one that cannot be imported."""
        try:
            importlib.import_module(name)
            return
        except ImportError:
            pass
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            found = sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
            found.__path__ = []
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], found)
        vars(found).update(attributes)
        self.replaced.append(f"{name}: {why}")

    def package(self, name: str, folder: str) -> None:
        """A package of theirs whose `__init__.py` does not run."""
        module = types.ModuleType(name)
        module.__path__ = [str(self.clone / folder)]
        sys.modules[name] = module
        self.replaced.append(f"{folder}/__init__.py: not run, it imports models or other datasets")

    def load(self, name: str) -> types.ModuleType:
        """A module of theirs. Ends the program if it needs a library that is not installed."""
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise SystemExit(
                f"{name} of {self.clone} needs {error.name}, which is not installed: `make "
                "frameworks` makes an environment with torchvision, .venv-frameworks"
            ) from None

    def torchvision(self) -> None:
        """Import torchvision, also where its compiled operators are for another build of torch."""
        if importlib.util.find_spec("torchvision") is None:
            return
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            for name in ("nms", "qnms"):
                signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                torch.library.define(f"torchvision::{name}", signature)
            importlib.import_module("torchvision")
            self.replaced.append("torchvision's compiled operators: declared, they do not load")


def unused(*_: object, **__: object) -> None:
    raise RuntimeError("what stands in for a library was called: it is on the way of the data")


# ----------------------------------------------------------------------------------- what is read


@dataclass
class Sources:
    """The same photographs as folders and as a pack.

    Attributes:
        images: <stem>.jpg and <stem>.json, as SAM 2 reads them.
        edgesam: images/train and annotations/train, as EdgeSAM reads them.
        pack: of the client's geometry.
        stems: names, in the order of image ids.
    """

    folder: Path
    stems: list[str]

    @property
    def images(self) -> Path:
        return self.folder / "photos"

    @property
    def edgesam(self) -> Path:
        return self.folder / "edgesam"

    @property
    def pack(self) -> Path:
        return self.folder / "pack"


def prepare(tars: list[str], folder: Path, count: int, fit: str) -> Sources:
    photos = read_photos(tars, count, 1)
    sources = Sources(folder, sorted(photos, key=lambda stem: int(stem.split("_")[-1])))
    sources.images.mkdir()
    kinds = {"jpg": "images", "json": "annotations"}
    for name in kinds.values():
        (sources.edgesam / name / "train").mkdir(parents=True)
    for stem, halves in photos.items():
        for (kind, name), content in zip(kinds.items(), halves, strict=True):
            (sources.images / f"{stem}.{kind}").write_bytes(content)
            link = sources.edgesam / name / "train" / f"{stem}.{kind}"
            link.symlink_to(sources.images / f"{stem}.{kind}")
    sa1bpack.pack(sources.images, sources.pack, fit=fit, workers=1, progress=False)
    return sources


@dataclass(frozen=True)
class Compared:
    """A line of the comparison.

    Attributes:
        largest, mean: of the absolute differences over all photographs.
        unit, why: of them; why there are any.
    """

    name: str
    largest: float
    mean: float
    unit: str
    why: str


def difference(name: str, unit: str, why: str, pairs: list[tuple]) -> Compared:
    """Of pairs of arrays, theirs and ours."""
    found = [
        (torch.as_tensor(a).double() - torch.as_tensor(b).double()).abs().flatten()
        for a, b in pairs
    ]
    every = torch.cat(found)
    return Compared(name, every.max().item(), every.mean().item(), unit, why)


def outlines(name: str, why: str, pairs: list[tuple]) -> Compared:
    """1 - IoU of masks (m, h, w), theirs and ours, that have a cell in one of them."""
    found = []
    for theirs, ours in pairs:
        theirs, ours = torch.as_tensor(theirs).bool(), torch.as_tensor(ours).bool()
        union = (theirs | ours).sum((1, 2))
        iou = (theirs & ours).sum((1, 2)) / union.clamp(min=1)
        found.append(1 - iou[union > 0])
    every = torch.cat(found)
    return Compared(name, every.max().item(), every.mean().item(), "1 - IoU", why)


# ------------------------------------------------------------------------------------------- ways

Way = Callable[[], int]


def epochs(ds: Dataset, batch_size: int, pipeline: Callable[[dict], dict], **options) -> Way:
    """One epoch of Loader and Pipeline that draws each photograph four times; their samples."""
    order = sa1bpack.WeightedOrder(ds, np.ones(len(ds)), samples=4 * len(ds))
    loader = sa1bpack.Loader(ds, batch_size, order=order, device="cpu", threads=1, **options)

    def epoch() -> int:
        done, made = 0, None
        for batch in loader:
            made = pipeline(batch)
            done += len(made["images"])
        assert made["images"].dtype == torch.float32
        return done

    return epoch


def each_of(dataset) -> Way:
    """All samples of a dataset of theirs."""
    return lambda: len([None for row in range(len(dataset)) if dataset[row]])


def batches_of(ds: Dataset, pipeline: transforms.Pipeline) -> Iterator[dict]:
    """What a pipeline makes of each image and all of its masks, in the order of image ids."""
    with sa1bpack.Loader(ds, 1, device="cpu", threads=1) as loader:
        made = {
            int(batch["image_ids"]): {
                name: value.clone()
                for name, value in pipeline(batch).items()
                if torch.is_tensor(value)
            }
            for batch in loader
        }
    for number in sorted(made):
        yield made[number]


@dataclass
class Client:
    """What there is of a client: lines of the comparison, and ways, theirs before ours."""

    compared: list[Compared]
    ways: dict[str, Way]


class InOrder:
    """Samples of a dataset of theirs in the order of image ids, as (sample, id)."""

    def __init__(self, dataset, keys: list[str]):
        self._dataset = dataset
        self._rows = sorted(range(len(keys)), key=lambda row: int(keys[row].split("_")[-1]))

    def __iter__(self) -> Iterator:
        return (self._dataset[row] for row in self._rows)


# ---------------------------------------------------------------------------------------- EdgeSAM


def edgesam(theirs: Theirs, sources: Sources, prompts: int, batch: int) -> Client:
    not_here = "not installed, and only drawing, evaluation or collating need it"
    theirs.torchvision()
    theirs.stand_in("cv2", not_here)
    theirs.stand_in("matplotlib.pyplot", not_here)
    theirs.stand_in("kornia.contrib", not_here, distance_transform=unused)
    theirs.stand_in("mmengine.dataset", not_here, pseudo_collate=unused)
    theirs.package("edge_sam", "edge_sam")
    theirs.package("edgesam_data", "training/data")
    data = theirs.load("edgesam_data.sa1b_dataset")
    wrapping = theirs.load("edgesam_data.augmentation.dataset_wrapper")

    vars(wrapping)["int"] = lambda number: np.asarray(number).item()
    theirs.replaced.append(
        "int() in dataset_wrapper.py: they take it of arrays of one number, which numpy 2.4 refuses"
    )

    def dataset(**options):
        return data.SA1BDataset(str(sources.edgesam), img_size=SIDE, split="train", **options)

    # The embeddings of a teacher, by their own files and as a feature.
    ds = sa1bpack.open(sources.pack)
    rows = np.random.default_rng(0).standard_normal((len(ds), *ROW), np.float32).astype(np.float16)
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "teacher", rows, ids, spatial=True, covers="canvas")
    by_id = dict(zip(ds.column("image_id").tolist(), rows, strict=True))
    where = {"logits_path": str(sources.folder / "embeddings"), "topk": ROW[0]}
    writer = wrapping.DatasetWrapper(dataset(), write=True, **where)
    Path(where["logits_path"]).mkdir()
    manager = writer.get_manager()
    for key in writer.keys:
        manager.write(key, np.int32(0).tobytes() + by_id[int(key.split("_")[-1])].tobytes())
    del manager, writer  # its process ends, and the files get their names

    def wrapped(**options):
        return wrapping.DatasetWrapper(dataset(**options), write=False, **where)

    with_masks = {"load_gt_mask": True, "mask_nms_thresh": 1.0}  # as their build.py passes it
    images = ds.with_options(features=["teacher"])
    runs = ds.with_options(mask_format="runs")
    plain, fine = transforms.Pipeline(ds), transforms.Pipeline(runs, mask_size=SIDE)
    drawn = transforms.Prompts({"point": 0.5, "box": 0.5})
    some = {"max_masks": prompts, "mask_select": "random"}
    ways = {
        "EdgeSAM, images and embeddings (phase 1)": each_of(wrapped(max_allowed_prompts=prompts)),
        "sa1bpack, images and embeddings": epochs(
            images, batch, transforms.Pipeline(images), max_masks=0
        ),
        f"EdgeSAM, boxes and points of {prompts} masks (phase 2)": each_of(
            dataset(max_allowed_prompts=prompts)
        ),
        f"sa1bpack, boxes and points of {prompts} masks": epochs(
            ds, batch, plain, mask_layout="padded_bits", **some
        ),
        "the same, and prompts drawn from the masks": epochs(
            ds, batch, lambda made: drawn(plain(made)), mask_layout="padded_bits", **some
        ),
        f"EdgeSAM, the same with {prompts} masks of {SIDE}²": each_of(
            dataset(max_allowed_prompts=prompts, **with_masks)
        ),
        f"sa1bpack, the same with {prompts} masks of {SIDE}²": epochs(runs, batch, fine, **some),
        "the same, and prompts drawn from these masks": epochs(
            runs, batch, lambda made: drawn(fine(made)), **some
        ),
        "EdgeSAM, the same without looking for covered masks": each_of(
            dataset(max_allowed_prompts=prompts, load_gt_mask=True)
        ),
    }
    return Client(edgesam_compared(wrapped(load_gt_mask=True), images), ways)


def edgesam_compared(dataset, ds: Dataset) -> list[Compared]:
    """What `DatasetWrapper` of `SA1BDataset` makes of each photograph, and what a pack does."""
    pixels, sizes, boxes, points, outlined, corners, rows = ([] for _ in range(7))
    ds = ds.with_options(mask_format="runs")
    made = batches_of(ds, transforms.Pipeline(ds, mask_size=SIDE))
    for ((image, anno), (embedding, _)), batch in zip(
        InOrder(dataset, dataset.keys), made, strict=True
    ):
        edges = batch["boxes_xyxy"][0]
        edges[:, 2:] -= batch["source_to_input"][0, [0, 1], [0, 1]].float()  # xmin and xmax
        pixels.append((image, batch["images"][0]))
        sizes.append((anno["img_size_before_pad"][1:], batch["input_sizes"][0]))
        boxes.append((anno["prompt_box"], edges))
        points.append((anno["prompt_point"][:, 0], batch["point_coords"][0]))
        rows.append((embedding, batch["teacher"][0].flatten()))
        outlined.append((anno["gt_mask"], batch["masks"][0]))
        corners.append((anno["gt_mask"], at_corners(ds, batch)))
    nearest = "theirs takes the source pixel at the upper left corner of a cell (nearest)"
    return [
        difference(
            "images", "deviations", "theirs resizes the whole image by a bilinear filter, the pack "
            "stores what a bicubic one made of the image decoded at 1/2 (--resample fast), rounded "
            "to whole levels", pixels,
        ),
        difference("size before padding", "pixels", "none is expected", sizes),
        difference("boxes", "pixels", "rounding to float32", boxes),
        difference("points", "pixels", "rounding to float32", points),
        outlines(
            "masks", f"{nearest}, which moves masks by half a cell; ours has the cells of which at "
            "least half is covered", outlined,
        ),
        outlines("the same, ours drawn at the corners", "theirs rounds to float32", corners),
        difference("embeddings", "", "none is expected", rows),
    ]  # fmt: skip


def at_corners(ds: Dataset, batch: dict) -> np.ndarray:
    """bool (m, SIDE, SIDE): the masks of an image by the source pixels at the corners of cells."""
    sample = ds[int(batch["indices"])]
    high, wide, height, width = (int(side) for side in sample["size"])
    x, y = wide / width / 2, high / height / 2  # half a cell, less a little against rounding
    shift = 2**-9
    window = masks.window_map(
        shift - x, shift - y, wide - x + shift, high - y + shift, (height, width)
    )
    runs = sample["run_ends"], sample["run_offset"], high, wide
    bits = masks.draw_window(*runs, window, (height, width), sampling="center")
    found = np.zeros((len(bits), SIDE, SIDE), bool)
    found[:, :height, :width] = masks.unpack_bits(bits, width)
    return found


# ------------------------------------------------------------------------------------------ SAM 2


def sam2(theirs: Theirs, sources: Sources, prompts: int, batch: int) -> Client:
    theirs.torchvision()
    sys.path.insert(0, str(theirs.clone))
    files = types.SimpleNamespace(open=open)
    theirs.stand_in("iopath.common.file_io", "files are opened by open()", g_pathmgr=files)
    theirs.stand_in("omegaconf.listconfig", "not installed, a type of lists", ListConfig=list)
    theirs.stand_in(
        "tensordict", "not installed, only collating needs it", tensorclass=lambda kind: kind
    )
    raw, vos, sampling, steps = (
        theirs.load(f"training.dataset.{name}")
        for name in ("vos_raw_dataset", "vos_dataset", "vos_sampler", "transforms")
    )
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

    def dataset(source, sampler, flips: bool):
        chain = [steps.RandomHorizontalFlip(consistent_transform=True)] * flips
        chain += [
            steps.RandomResizeAPI(sizes=SIDE, square=True, consistent_transform=True),
            steps.ToTensorAPI(), steps.NormalizeAPI(mean=mean, std=std),
        ]  # fmt: skip
        return vos.VOSDataset([steps.ComposeAPI(chain)], True, source, sampler, multiplier=1)

    ds = sa1bpack.open(sources.pack, mask_format="runs")
    folders = raw.SA1BRawDataset(str(sources.images), str(sources.images))
    packed = RawDataset(ds)
    ways = {}
    for count in (OBJECTS, prompts):
        sampler = sampling.RandomUniformSampler(num_frames=1, max_num_objects=count)
        pipeline = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip()], mask_size=SIDE)
        ways |= {
            f"SAM 2, {count} masks": each_of(dataset(folders, sampler, True)),
            f"SAM 2 on sa1bpack's RawDataset, {count} masks": each_of(
                dataset(packed, sampler, True)
            ),
            f"sa1bpack, {count} masks": epochs(
                ds, batch, pipeline, max_masks=count, mask_select="random"
            ),
        }
    whole = dataset(folders, sampling.EvalSampler(), False)
    return Client(sam2_compared(InOrder(whole, folders.video_names), ds), ways)


def sam2_compared(samples: InOrder, ds: Dataset) -> list[Compared]:
    """What `VOSDataset` of `SA1BRawDataset` makes of each photograph, and what a pack does."""
    pixels, outlined = [], []
    made = batches_of(ds, transforms.Pipeline(ds, mask_size=SIDE))
    for sample, batch in zip(samples, made, strict=True):
        [frame] = sample.frames
        pixels.append((frame.data, batch["images"][0]))
        segments = torch.stack([each.segment for each in frame.objects])
        outlined.append((segments, batch["masks"][0]))
    return [
        difference(
            "images", "deviations", "theirs resizes the whole image by a bilinear filter, the pack "
            "stores what a bicubic one made of the image decoded at 1/2 (--resample fast), rounded "
            "to whole levels", pixels,
        ),
        outlines(
            "masks", "theirs filters the mask (bilinear, antialiased) and rounds; ours has the "
            "cells of which at least half is covered", outlined,
        ),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- measuring


def table(found: dict[str, list[float]]) -> str:
    """Medians, and how many times less each way of ours costs than theirs before it."""
    lines = ["| way | CPU ms per sample | times less |", "|---|---:|---:|"]
    theirs: list[float] = []
    for name, taken in found.items():
        times = ""
        if name.startswith((f"{EDGESAM},", f"{SAM2},")):
            theirs = taken
        else:
            times = f"{statistics.median(a / b for a, b in zip(theirs, taken, strict=True)):.1f}"
        lines.append(f"| {name} | {statistics.median(taken):.2f} | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clone", type=Path, help="folder of a clone of EdgeSAM or SAM 2")
    parser.add_argument("tars", nargs="+", metavar="TAR")
    parser.add_argument("--images", type=int, default=11)
    parser.add_argument("--prompts", type=int, default=16, help="masks of an image, at most")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="0: compare only")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    client = client_of(options.clone)
    theirs = Theirs(options.clone.resolve())
    with tempfile.TemporaryDirectory() as folder:
        fit = "pad" if client == EDGESAM else "squash"
        sources = prepare(options.tars, Path(folder), options.images, fit)
        build = edgesam if client == EDGESAM else sam2
        made = build(theirs, sources, options.prompts, options.batch)
        found = measure(made.ways, options.rounds) if options.rounds else {}
    print(describe_packages())
    print(f"{len(sources.stems)} photographs, {options.rounds} rounds, one core")
    print("Replaced in their code:", *theirs.replaced or ["nothing"], sep="\n- ")
    print("\n| what they give | largest difference | mean | why |\n|---|---:|---:|---|")
    for line in made.compared:
        unit = f" {line.unit}" if line.unit else ""
        print(f"| {line.name} | {line.largest:.4g}{unit} | {line.mean:.2g} | {line.why} |")
    if found:
        print(f"\n{table(found)}")
    if options.json:
        lines = [vars(line) for line in made.compared]
        options.json.write_text(
            json.dumps({"replaced": theirs.replaced, "compared": lines, "ms": found}, indent=1)
        )


if __name__ == "__main__":
    main()

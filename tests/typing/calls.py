"""Calls of the public names with the types that users have, for `make lint`: nothing runs them.

`assert_type` is the type that an editor shows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader

import sa1bpack
from sa1bpack import errors, masks
from sa1bpack import transforms as T
from sa1bpack.display import Batch


def told(done: int, total: int) -> None:
    """A function as every call takes for `progress`."""


def pack_and_look(tars: list[Path], out: Path) -> None:
    forecast = sa1bpack.estimate("tars/*.tar", out, image_size=512)
    assert_type(forecast.images, int)
    result = sa1bpack.pack(tars, "packed", workers=4, md5sums=Path("md5sums.txt"), pixels="yuv420")
    assert_type(result, sa1bpack.PackResult)
    assert_type(result.failed, dict[str, errors.SourceError])
    assert_type(
        sa1bpack.pack_part(tars, out, (1, 2), workers=4, progress=told), sa1bpack.PackResult
    )
    assert_type(sa1bpack.finalize(out), sa1bpack.FinalizeResult)
    assert_type(sa1bpack.verify(out, quick=True, io="direct", progress=told).ok, bool)
    assert_type(sa1bpack.verify("packed").ok, bool)
    assert_type(sa1bpack.repair(out, tars, dry_run=True), sa1bpack.RepairResult)
    assert_type(sa1bpack.merge(["one", "two"], out, progress=True), sa1bpack.MergeResult)
    assert_type(sa1bpack.export_sa1b([out], "records", progress=told), sa1bpack.ExportResult)
    assert_type(sa1bpack.export_coco(out, Path("coco.json"), renumber=True).complete, bool)
    assert_type(
        sa1bpack.copy_selection(sa1bpack.open(out)[:9], "nine", dry_run=True), sa1bpack.CopyResult
    )
    assert_type(sa1bpack.info(["one", "two"]).as_text(), str)
    assert_type(sa1bpack.report(out, "report.html", samples=4, progress=False).path, Path)
    with sa1bpack.explore([out], port=0, folder=out) as page:
        assert_type(page.url, str)
    sa1bpack.show(out, image_ids=[5], large=True, boxes=False, max_masks=9).save("sheet.png")
    assert_type(sa1bpack.bench(out, progress=told).as_text(), str)
    assert_type(sa1bpack.PackOptions(fit="native").mask_size, int)
    assert_type(sa1bpack.__version__, str)


def select(folder: Path) -> sa1bpack.Dataset:
    ds = sa1bpack.open([folder, "other"], mask_format="runs", features=["teacher"], min_iou=0.88)
    assert_type(ds, sa1bpack.Dataset)
    assert_type(len(ds), int)
    assert_type(ds.column("mask_count"), np.ndarray)
    assert_type(ds.fingerprint, str)
    train, val = ds.split(val_fraction=0.01)
    assert_type(val, sa1bpack.Dataset)
    assert_type(ds.metadata(0).file_name, str)
    ds.where("mask_count > 0").save_selection(folder / "some.ids")
    assert_type(ds.where_masks("area > 100 & depth == 0"), sa1bpack.Dataset)
    return train.fraction(0.1, seed=1).where(lambda columns: columns["mask_count"] > 3)


def order(ds: sa1bpack.Dataset) -> sa1bpack.OrderedBatches:
    weights = ds.column("mask_count")
    for one in (
        sa1bpack.SequentialOrder(ds),
        sa1bpack.ShuffleOrder(ds, seed=1),
        sa1bpack.LocalShuffleOrder(ds, window=4),
        sa1bpack.NodeShuffleOrder(ds, nodes=8),
        sa1bpack.WeightedOrder(ds, weights, samples=10),
        sa1bpack.MaskPassOrder(ds, 32, shuffle=False),
    ):
        assert_type(one.take(0, 0, 3), np.ndarray)
    both: ConcatDataset[Any] = ConcatDataset([])
    shuffled = sa1bpack.ShuffleOrder(sa1bpack.Extent(len(both), "00000000000000a1"))
    batches = sa1bpack.OrderedBatches(shuffled, 32, bucket_by=sa1bpack.Buckets(ds, weights))
    assert_type(iter(batches), Iterator[list[int]])
    assert_type(batches.state_dict(), dict[str, Any])
    return batches


def load(ds: sa1bpack.Dataset, state: dict[str, Any]) -> None:
    caps = sa1bpack.LinearSchedule(20, 100, epochs=8)
    choice = sa1bpack.PiecewiseSchedule("largest", {3: "random"})
    sizes = sa1bpack.FunctionSchedule(lambda epoch: 8 + epoch, epochs=8)
    assert_type(caps(3), Any)
    with sa1bpack.Loader(
        ds, 8, device="cuda", max_masks=caps, mask_select=choice, on_epoch_end=print
    ) as loader:
        loader.load_state_dict(state)
        for batch in loader:
            assert_type(batch["images"], Any)
        assert_type(loader.stats(), sa1bpack.LoadingStats)
        assert_type(loader.stats().cached_share, float | None)
        assert_type(loader.plan().device_bytes, int)
        with sa1bpack.Mix({"a": loader}, {"a": caps}, at_end="restart", steps=9) as mix:
            for batch in mix:
                assert_type(batch, Batch)
            mix.load_state_dict(mix.state_dict())
            assert_type(mix.stats(), sa1bpack.MixStats)
            assert_type(mix.stats().sources["a"].waited_seconds, float)
            assert_type(mix.plan().batches["a"], int)
    rising = sa1bpack.CosineSchedule(20, 40, epochs=2)
    for batch in sa1bpack.make_dataloader(ds, 8, max_masks=rising, relations=["ious"]):
        assert_type(batch, Batch)
    sa1bpack.make_dataloader(ds, sizes(0), shuffle=True, prefetch_factor=4)
    seeded = sa1bpack.Seeded(lambda sample: sample, seed=3)
    seeded.set_epoch(1)
    sa1bpack.make_dataloader(ds.with_options(transform=seeded), 8, worker_init_fn=print)
    options = sa1bpack.ReadingOptions(order=sa1bpack.ShuffleOrder(ds), max_masks=64)
    assert_type(options.timeout, float)
    collate = sa1bpack.Collate("concat", sample_spec=ds.spec)
    assert_type(collate([ds[0], ds[1]]), Batch)
    DataLoader(sa1bpack.IterableTarDataset("*.tar"), batch_size=2, collate_fn=collate)
    assert_type(len(sa1bpack.TarDataset([Path("sa_000000.tar")])), int)


def derive(ds: sa1bpack.Dataset, model: torch.nn.Module) -> sa1bpack.DeriveResult:
    def embed(batch: dict[str, Any]) -> torch.Tensor:
        return torch.as_tensor(model(batch["images"]))

    sa1bpack.attach(ds, "number", np.arange(3), [2, 5, 6], axis="sample")
    sa1bpack.attach(ds, "caption", {2: "a street"}, missing="allow")
    sa1bpack.attach(ds, "caption", Path("a.jsonl"), value="text", missing="allow", shape=(None,))
    return sa1bpack.derive(ds, "teacher", embed, device="cuda", progress=print)


def transform(ds: sa1bpack.Dataset, batch: dict[str, Any]) -> dict[str, Any]:
    geometry = [T.RandomVerticalFlip(0.1), T.RandomAffine(10), T.ScaleJitter()]
    geometry.append(T.CropAroundMask((1.3, 3), "largest"))
    pixels = [T.ColorJitter(0.4, random_order=True), T.RandomGrayscale(), T.GaussianBlur(9, 2)]
    steps = [*geometry, *pixels, T.RandomErasing(value=(0, 0, 1), masks=True), T.Mixup()]
    pipeline = T.Pipeline(ds, steps, size=(512, 768), dtype=torch.bfloat16, relations=["parents"])
    assert_type(pipeline(batch), Batch)
    assert_type(T.describe_kernels("cuda"), str)
    crops = T.mask_crops(batch, (224, 224), scale=1.5, background=(0, 0, 0))
    assert_type(crops.images, torch.Tensor)
    T.forget_sent(batch)
    assert_type(T.Relate(["ious"])(batch), dict[str, torch.Tensor])
    assert_type(T.label_map(batch), torch.Tensor)
    assert_type(T.holes(batch) | T.contours(batch, width=2), torch.Tensor)
    clicks, _ = T.correction_clicks(
        batch["masks"], batch["masks"], batch["annotation_ids"], where="interior", seed=0, epoch=0
    )
    assert_type(clicks, torch.Tensor)
    assert_type(T.sam_points(T.Prompts("box")(batch)), tuple[torch.Tensor, torch.Tensor])
    return pipeline(batch)


def draw(text: np.ndarray, offset: np.ndarray) -> np.ndarray:
    ends, starts, _ = masks.parse_counts(text, offset, 12)
    assert_type(masks.mask_area(ends, starts), np.ndarray)
    found = masks.relate_runs(ends, starts, 3, 4)
    assert_type(found, masks.Relations)
    assert_type(found.intersections, np.ndarray)
    bits = masks.rasterize(ends, starts, 3, 4, mask_size=8, fit="squash")
    return masks.unpack_bits(bits)


def fail(path: str) -> str:
    try:
        sa1bpack.open(path)
    except sa1bpack.ReadError as error:
        return f"{error.shard} {error.row} {error.image_id}"
    except (sa1bpack.FormatError, sa1bpack.OptionError, sa1bpack.LoaderError) as error:
        return str(error)
    return ""

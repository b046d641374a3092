"""Options of calls for type checkers, written by scripts/write_option_keywords.py."""

import collections.abc
import numpy
import os
import sa1bpack.display
import sa1bpack.loading.batch.mask_choice
import sa1bpack.loading.order.buckets
import sa1bpack.loading.order.orders
import sa1bpack.loading.stats
import sa1bpack.schedules
import sa1bpack.transforms.masks.relations
import typing

class RunKeywords(typing.TypedDict, total=False):
    preset: str
    image_size: typing.Union[int, typing.Literal['source']]
    fit: str | None
    pixels: str | None
    resample: str
    masks: str | None
    mask_size: int
    mask_sampling: str
    empty: str
    samples_per_shard: int | None
    keep: str | collections.abc.Iterable[str] | collections.abc.Mapping[str, str | None] | None
    records: str | None
    keys: str | None
    absent: str | collections.abc.Iterable[str] | None
    max_masks: int | None
    mask_select: str
    seed: int
    min_area: int
    max_area_frac: float | None
    min_iou: float | None
    min_stability: float | None
    workers: int | None
    links: str | os.PathLike[str] | None
    downloads: int | None
    md5sums: str | os.PathLike[str] | None
    md5: bool
    annotations: str | os.PathLike[str] | None
    max_rejects: int | None
    ignore_space: bool

class SampleKeywords(typing.TypedDict, total=False):
    on_error: str
    verify_checksums: bool
    features: str | os.PathLike[str] | collections.abc.Iterable[str | os.PathLike[str]] | None
    mask_format: str
    mask_size: int | None
    mask_sampling: str | None
    pixels: str
    coordinates: str
    transform: collections.abc.Callable[[sa1bpack.display.Sample], typing.Any] | None
    min_area: int
    max_area_frac: float | None
    min_iou: float | None
    min_stability: float | None

class RawKeywords(typing.TypedDict, total=False):
    max_masks: int | None
    mask_format: str
    mask_size: int | None
    mask_sampling: str | None
    pixels: str
    coordinates: str
    transform: collections.abc.Callable[[sa1bpack.display.Sample], typing.Any] | None
    min_area: int
    max_area_frac: float | None
    min_iou: float | None
    min_stability: float | None

class ReadingKeywords(typing.TypedDict, total=False):
    global_batch_size: int | sa1bpack.schedules.Schedule | list[int] | collections.abc.Callable[[int], int] | None
    shuffle: bool
    order: str | sa1bpack.loading.order.orders.Order | None
    mask_layout: str
    max_masks: int | sa1bpack.schedules.Schedule | list[int] | collections.abc.Callable[[int], int] | None
    mask_select: str | collections.abc.Callable[[sa1bpack.loading.batch.mask_choice.MaskColumns], numpy.ndarray] | numpy.ndarray | sa1bpack.schedules.Schedule | list[typing.Any]
    pad_to_max: bool
    bucket_by: str | numpy.ndarray | sa1bpack.loading.order.buckets.Buckets | None
    relations: sa1bpack.transforms.masks.relations.Relate | collections.abc.Sequence[str] | None
    fields: str | collections.abc.Iterable[str] | None
    seed: int | None
    drop_last: bool
    pad_last: bool | str
    rank: int | None
    world_size: int | None
    on_error: str
    max_dropped: float
    timeout: float
    progress: bool | collections.abc.Callable[[int, int], object] | None
    on_epoch_end: collections.abc.Callable[[sa1bpack.loading.stats.LoadingStats], object] | None

class LoaderKeywords(typing.TypedDict, total=False):
    device: str
    threads: int | None
    prefetch: int | None
    pipeline: collections.abc.Callable[[typing.Any], typing.Any] | None
    pipeline_threads: int | None
    io: str | None
    global_batch_size: int | sa1bpack.schedules.Schedule | list[int] | collections.abc.Callable[[int], int] | None
    shuffle: bool
    order: str | sa1bpack.loading.order.orders.Order | None
    mask_layout: str
    max_masks: int | sa1bpack.schedules.Schedule | list[int] | collections.abc.Callable[[int], int] | None
    mask_select: str | collections.abc.Callable[[sa1bpack.loading.batch.mask_choice.MaskColumns], numpy.ndarray] | numpy.ndarray | sa1bpack.schedules.Schedule | list[typing.Any]
    pad_to_max: bool
    bucket_by: str | numpy.ndarray | sa1bpack.loading.order.buckets.Buckets | None
    relations: sa1bpack.transforms.masks.relations.Relate | collections.abc.Sequence[str] | None
    fields: str | collections.abc.Iterable[str] | None
    seed: int | None
    drop_last: bool
    pad_last: bool | str
    rank: int | None
    world_size: int | None
    on_error: str
    max_dropped: float
    timeout: float
    progress: bool | collections.abc.Callable[[int, int], object] | None
    on_epoch_end: collections.abc.Callable[[sa1bpack.loading.stats.LoadingStats], object] | None

class AttachKeywords(typing.TypedDict, total=False):
    missing: str
    key: str | None
    value: str | None
    dtype: str | None
    axis: str
    spatial: bool | None
    covers: str | None
    interpolation: str | None
    output: str | os.PathLike[str] | None
    allow_nonfinite: bool
    quantize: str | None

class DeriveKeywords(typing.TypedDict, total=False):
    batch_size: int
    device: str
    max_masks: int | None
    mask_select: str
    mask_layout: str | None
    fields: str | collections.abc.Iterable[str] | None
    threads: int | None
    prefetch: int | None
    io: str | None
    timeout: float
    axis: str
    spatial: bool | None
    covers: str | None
    interpolation: str | None
    output: str | os.PathLike[str] | None
    allow_nonfinite: bool
    quantize: str | None

class ModuleKeywords(typing.TypedDict, total=False):
    on_error: str
    verify_checksums: bool
    features: str | os.PathLike[str] | collections.abc.Iterable[str | os.PathLike[str]] | None
    mask_format: str
    mask_size: int | None
    mask_sampling: str | None
    pixels: str
    coordinates: str
    min_area: int
    max_area_frac: float | None
    min_iou: float | None
    min_stability: float | None
    device: str
    threads: int | None
    prefetch: int | None
    pipeline: collections.abc.Callable[[typing.Any], typing.Any] | None
    pipeline_threads: int | None
    io: str | None
    global_batch_size: int | sa1bpack.schedules.Schedule | list[int] | collections.abc.Callable[[int], int] | None
    shuffle: bool
    order: str | sa1bpack.loading.order.orders.Order | None
    mask_layout: str
    max_masks: int | sa1bpack.schedules.Schedule | list[int] | collections.abc.Callable[[int], int] | None
    mask_select: str | collections.abc.Callable[[sa1bpack.loading.batch.mask_choice.MaskColumns], numpy.ndarray] | numpy.ndarray | sa1bpack.schedules.Schedule | list[typing.Any]
    pad_to_max: bool
    bucket_by: str | numpy.ndarray | sa1bpack.loading.order.buckets.Buckets | None
    relations: sa1bpack.transforms.masks.relations.Relate | collections.abc.Sequence[str] | None
    fields: str | collections.abc.Iterable[str] | None
    seed: int | None
    drop_last: bool
    pad_last: bool | str
    rank: int | None
    world_size: int | None
    max_dropped: float
    timeout: float
    progress: bool | collections.abc.Callable[[int, int], object] | None
    on_epoch_end: collections.abc.Callable[[sa1bpack.loading.stats.LoadingStats], object] | None

class LookKeywords(typing.TypedDict, total=False):
    outlines: bool
    opacity: float
    boxes: bool
    points: bool
    numbers: bool
    max_masks: int | None
    feature: str | None

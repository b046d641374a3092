"""quantize: half the bytes of float16, a stated error, and nothing else changes."""

import shutil
from functools import partial
from math import prod

import numpy as np
import pytest
import torch
import zarr
from reading_packs import write_pack
from shard_files import arrays_of, feature_shards_of
from small_tars import contents

import sa1bpack
from sa1bpack import OptionError, verify
from sa1bpack.errors import OutputRefused

DTYPES = {"int8": "scaled_int8", "float8": "scaled_float8_e4m3fn"}  # of docs/format.md
KINDS = list(DTYPES)
CHANNELS = 10.0 ** torch.linspace(-2, 2, 8)


def embed(batch, dtype="float16"):
    """(B, 8, 16, 16) normally distributed by image id, channels of very different size."""
    ids = batch["image_ids"].tolist()
    rows = [torch.randn(8, 16, 16, generator=torch.Generator().manual_seed(i)) for i in ids]
    return (torch.stack(rows) * CHANNELS[:, None, None]).to(getattr(torch, dtype))


@pytest.fixture
def quantized(tmp_path):
    """quantized(rows, kind): the opened pack of a sample for each row, and what is stored of them
    as the feature `a`; `replaced` are bytes to store in place of these."""

    def quantized(rows, kind, replaced=None):
        root = tmp_path / "rows"
        write_pack(root, {"sa_000000-000": (0,) * len(rows)})
        ds = sa1bpack.open(root)
        made = sa1bpack.attach(ds, "a", np.array(rows), ds.column("image_id"), quantize=kind)
        (folder,) = made.folder.glob("sa_*")
        values = arrays_of(folder)["values"]
        if replaced is not None:
            (path,) = (folder / "values").glob("c.*")
            path.write_bytes(replaced.tobytes() + path.read_bytes()[values.nbytes :])
        return ds.with_options(features=["a"]), values

    return quantized


def stored_bytes(folder) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/values/c.0*"))


def reference(rows: np.ndarray, kind: str) -> np.ndarray:
    """Floats (..., C, n) as they are read again, by torch and its own float8."""
    rows = torch.from_numpy(rows).float()
    scale = rows.abs().amax(-1, keepdim=True) / {"int8": 127, "float8": 448}[kind]
    values = (rows / scale).nan_to_num()
    values = values.round() if kind == "int8" else values.to(torch.float8_e4m3fn).float()
    return (values * scale).half().numpy()


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of the last axis."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_half_and_the_error_is_within_what_is_stated(ds, pack, kind):
    made = sa1bpack.derive(ds, "half", embed, spatial=True)
    small = sa1bpack.derive(ds, kind, embed, spatial=True, quantize=kind)
    assert stored_bytes(small.folder) / stored_bytes(made.folder) < 0.51
    found = sa1bpack.open(pack, features=kind).column(kind)
    assert found.dtype == np.float16 and found.shape == (len(ds), 8, 16, 16)
    rows = embed({"image_ids": ds.column("image_id")}, "float32").double().numpy()
    largest = np.abs(rows).max((2, 3), keepdims=True)
    # Half a step, and twice half a step of float16: what embed returns, and here.
    step = largest / 254 if kind == "int8" else np.abs(rows) / 16 + largest / 448 / 1024
    assert (np.abs(found - rows) <= step + np.abs(rows) * 2.0**-10 + 2.0**-24).all()
    a, b = (x.reshape(len(ds), 8, -1) for x in (rows, found))
    # Of every channel, also of those that are small.
    assert cosines(a, b).min() > {"int8": 0.9999, "float8": 0.9994}[kind]
    assert verify(pack).ok
    line = f"{kind}: {DTYPES[kind]} (8, 16, 16) per image, spatial"
    assert line in str(sa1bpack.info(pack))


def normal(rng):
    return rng.standard_normal((2, 256, 4096), np.float32)


def laplace(rng):
    return rng.laplace(size=(2, 256, 4096)).astype(np.float32)


def outliers(rng):
    """Of a thousand values, one is thirty times as large."""
    rows = normal(rng)
    return np.where(rng.random(rows.shape) < 0.001, 30 * rows, rows)


# The cosine of an image, and of all channels at a position, scaled to the same size.
@pytest.mark.parametrize(
    "kind, rows, image, position",
    [
        ("int8", normal, 0.99995, 0.9999), ("float8", normal, 0.9996, 0.9994),
        ("int8", laplace, 0.9998, 0.9998), ("float8", laplace, 0.9996, 0.9994),
        ("int8", outliers, 0.996, 0.98), ("float8", outliers, 0.9996, 0.9990),
    ],
)  # fmt: skip
def test_the_cosines_of_embeddings_of_sams_shape_are_those_of_the_page(
    quantized, kind, rows, image, position
):
    sizes = 10.0 ** np.linspace(-1, 1, 256, dtype=np.float32)[:, None]
    given = rows(np.random.default_rng(0)) * sizes
    ds, stored = quantized(given, kind)
    assert stored.nbytes / len(given) == 1_049_600
    found = ds.column("a")
    np.testing.assert_array_equal(found, reference(given, kind))
    assert cosines(*(x.reshape(2, -1) for x in (given, found))).min() > image
    each = cosines(*(np.swapaxes(x / sizes, 1, 2) for x in (given, found)))
    assert each.min() > position
    largest = np.abs(given).max(-1, keepdims=True)
    assert (np.abs(given - found) / largest).max() < {"int8": 1 / 220, "float8": 1 / 27}[kind]


def test_float8_is_torchs_and_so_is_its_rounding(quantized):
    bits = np.arange(256, dtype=np.uint8)
    values = torch.from_numpy(bits).view(torch.float8_e4m3fn).float().numpy()
    finite = np.unique(values[np.isfinite(values)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(ties, np.float32(way)) for way in (-np.inf, np.inf)]
    row = np.concatenate([finite, -finite, ties, *near])
    _, stored = quantized(row[None], "float8")
    expected = torch.from_numpy(row).to(torch.float8_e4m3fn).view(torch.uint8)
    np.testing.assert_array_equal(stored[0, 4:], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_floats_of_every_type_are_taken(ds, dtype, kind):
    options = {"dtype": dtype}
    made = sa1bpack.derive(ds, "a", embed, options=options, quantize=kind)
    found = sa1bpack.open(ds.root, features=[made.folder])[0]["a"]
    given = embed({"image_ids": ds.column("image_id")[:1]}, dtype).double().numpy()
    expected = reference(given.reshape(1, 8, -1), kind)
    np.testing.assert_array_equal(found, expected.reshape(8, 16, 16))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_bfloat16_are_attached_and_others_refused(ds, tmp_path, kind):
    ids = ds.column("image_id")
    rows = embed({"image_ids": ids}, "bfloat16")
    attach = partial(sa1bpack.attach, ds, "a", ids=ids, quantize=kind)
    one = attach(rows=rows, output=tmp_path / "one").folder
    two = attach(rows=rows.float(), output=tmp_path / "two").folder
    for name in feature_shards_of(one):
        assert contents(one / name) == contents(two / name)
    assert attach(rows=rows, output=tmp_path / "one").made == ()
    with pytest.raises(OutputRefused, match="it has other rows for sample 0"):
        attach(rows=-rows, output=tmp_path / "one")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row_shape", [(7,), (3, 4), (2, 3, 5), (1, 256)])
def test_whatever_is_stored_samples_and_batches_have_the_same_numbers(quantized, row_shape, kind):
    """numpy makes those of samples, torch those of batches; every byte that a file can have."""
    rng = np.random.default_rng(0)
    channels, values = (1, 7) if len(row_shape) == 1 else (row_shape[0], prod(row_shape[1:]))
    scaled = rng.integers(0, 256, (20, channels, 4 + values), np.uint8)
    scaled[10:, :, :4] = np.array([1.5], "<f4").view(np.uint8)
    scaled[-1, :, 4:] = np.arange(values) % 256
    ds, _ = quantized(np.zeros((20, *row_shape), np.float32), kind, scaled)
    found = ds.column("a")
    numbers = torch.from_numpy(scaled[..., 4:])
    numbers = numbers.view(torch.int8 if kind == "int8" else torch.float8_e4m3fn).float()
    scales = torch.from_numpy(scaled[..., :4].copy()).view(torch.float32)
    expected = (numbers * scales).half().numpy()
    np.testing.assert_array_equal(found, expected.reshape(20, *row_shape))
    for batch_size in (1, 20):
        with sa1bpack.Loader(ds, batch_size) as loader:
            batches = torch.cat([batch["a"] for batch in loader])
        np.testing.assert_array_equal(batches.numpy(), found)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_the_smallest_and_largest_numbers_stay_in_range(quantized, kind):
    rows = np.array([[0, 0], [1e-45, -1e-44], [65504, -65504], [3e-5, 0]], np.float32)
    ds, _ = quantized(rows, kind)
    np.testing.assert_array_equal(ds.column("a"), rows.astype(np.float16))


@pytest.mark.parametrize("kind", KINDS)
def test_zarr_reads_it_as_the_page_of_the_format_says(ds, pack, kind):
    made = sa1bpack.derive(ds, "a", embed, quantize=kind)
    expected = sa1bpack.open(pack, features="a").column("a")
    found = []
    for name in feature_shards_of(made.folder):
        array = zarr.open_group(made.folder / name, mode="r")["values"]
        assert array.metadata.dimension_names == ("sample", "channel", "scale_and_values")
        stored = array[:]
        values = stored[..., 4:]
        if kind == "float8":
            assert array.dtype == np.uint8
            values = torch.from_numpy(values).view(torch.float8_e4m3fn).float().numpy()
        values = values * stored[..., :4].copy().view("<f4")
        found.append(values.astype(np.float16).reshape(len(stored), 8, 16, 16))
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows, change, message",
    [
        ([[1, 2]], {}, "rows are int64: choose floats"),
        ([1.0], {}, "rows are single numbers"),
        ([[1.0]], {"quantize": "int4"}, "quantize is 'int4': choose one of int8, float8"),
        ([[1.0]], {"allow_nonfinite": True}, "have no scale"),
        ([[np.nan, 1.0]], {}, "a of image .* has NaN or an infinity.* without quantize"),
        ([[1.0, 1e5]], {}, "a of image .* has NaN or an infinity.* beyond float16"),
    ],
    ids=str,
)
def test_what_cannot_be_quantized_is_refused(ds, rows, change, message, kind):
    rows = np.repeat(np.array(rows), len(ds), 0)
    with pytest.raises(OptionError, match=message.replace("{}", kind)):
        sa1bpack.attach(ds, "a", rows, ds.column("image_id"), **{"quantize": kind} | change)


@pytest.mark.parametrize("kind, other", [KINDS, KINDS[::-1]])
def test_a_folder_made_with_it_is_not_continued_without_it_nor_the_reverse(ds, kind, other):
    small = sa1bpack.derive(ds, "a", embed, quantize=kind)
    for wrong in (None, other):
        with pytest.raises(OutputRefused, match=f"but quantize is {wrong!r}: choose quantize as"):
            sa1bpack.derive(ds, "a", embed, quantize=wrong)
    shutil.rmtree(small.folder)
    sa1bpack.derive(ds, "a", embed)
    with pytest.raises(OutputRefused, match=f"but quantize is {kind!r}: choose quantize as"):
        sa1bpack.derive(ds, "a", embed, quantize=kind)

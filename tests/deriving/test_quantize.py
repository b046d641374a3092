"""quantize="int8": half the bytes of float16, a stated error, and nothing else changes."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
import zarr
from small_tars import contents

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.side.spec import floats_of, part_names, scaled_of
from sa1bpack.format.verify import verify
from sa1bpack.loading.devices import floats_on_device

CHANNELS = 10.0 ** torch.linspace(-2, 2, 8)


def embed(batch, dtype="float16"):
    """(B, 8, 16, 16) normally distributed by image id, channels of very different size."""
    ids = batch["image_ids"].tolist()
    rows = [torch.randn(8, 16, 16, generator=torch.Generator().manual_seed(i)) for i in ids]
    return (torch.stack(rows) * CHANNELS[:, None, None]).to(getattr(torch, dtype))


def exact(ids) -> np.ndarray:
    return embed({"image_ids": ids}, "float32").double().numpy()


def part_sizes(folder) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/values/c.0*"))


def test_the_bytes_are_half_and_the_error_is_within_what_is_stated(ds, pack):
    made = sa1bpack.derive(ds, "half", embed, spatial=True)
    small = sa1bpack.derive(ds, "int8", embed, spatial=True, quantize="int8")
    assert part_sizes(small.folder) / part_sizes(made.folder) < 0.51
    found = sa1bpack.open(pack, features="int8").column("int8")
    assert found.dtype == np.float16 and found.shape == (len(ds), 8, 16, 16)
    rows = exact(ds.column("image_id"))
    largest = np.abs(rows).max((2, 3), keepdims=True)
    # Half a step of the channel, and twice half a step of float16: what embed returns, and here.
    assert (np.abs(found - rows) <= largest / 254 + np.abs(rows) * 2.0**-10).all()
    a, b = (x.reshape(len(ds), 8, -1) for x in (rows, found.astype(float)))
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    assert cosine.min() > 0.9999  # of every channel, also of those that are small
    assert verify(pack).ok
    assert "int8: scaled_int8 (8, 16, 16) per image, spatial" in str(sa1bpack.info(pack))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_floats_of_every_type_are_taken(ds, dtype):
    options = {"dtype": dtype}
    made = sa1bpack.derive(ds, "a", embed, options=options, quantize="int8")
    found = sa1bpack.open(ds.root, features=[made.folder])[0]["a"]
    given = embed({"image_ids": ds.column("image_id")[:1]}, dtype).double().numpy()
    np.testing.assert_array_equal(found[None], floats_of(scaled_of(given), given.shape[1:]))


def test_bits_of_bfloat16_are_attached_like_the_tensor(ds, tmp_path):
    ids = ds.column("image_id")
    rows = embed({"image_ids": ids}, "bfloat16")
    bits = rows.view(torch.int16).numpy().view(np.uint16)
    attach = partial(sa1bpack.attach, ds, "a", ids=ids, quantize="int8")
    one = attach(array=rows, output=tmp_path / "one").folder
    two = attach(array=bits, dtype="bfloat16", output=tmp_path / "two").folder
    for name in part_names(one):
        assert contents(one / name) == contents(two / name)
    assert attach(array=rows, output=tmp_path / "one").made == ()
    with pytest.raises(OutputRefused, match="it has other rows for sample 0"):
        attach(array=-rows, output=tmp_path / "one")


def test_batches_have_the_rows_of_samples_and_a_pipeline_moves_them(ds, pack):
    sa1bpack.derive(ds, "a", embed, spatial=True, quantize="int8")
    opened = sa1bpack.open(pack, features="a")
    pipeline = T.Pipeline(opened, [T.RandomHorizontalFlip(1.0)])
    for batch in sa1bpack.Loader(opened, 3):
        rows = np.stack([opened.by_id(image)["a"] for image in batch["image_ids"].tolist()])
        np.testing.assert_array_equal(batch["a"].numpy(), rows)
        assert pipeline(batch)["a"].shape == batch["a"].shape


@pytest.mark.parametrize("row_shape", [(7,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("lead", [(), (1,), (4,), (2, 3), (0,)])
def test_whatever_is_stored_numpy_and_torch_make_the_same_of_it(row_shape, lead):
    rng = np.random.default_rng(0)
    shape = scaled_of(np.zeros((1, *row_shape))).shape[1:]
    for _ in range(20):
        stored = rng.integers(-128, 128, (*lead, *shape), np.int8)
        found = floats_of(stored, row_shape)
        assert found.shape == (*lead, *row_shape)
        np.testing.assert_array_equal(
            floats_on_device(torch.from_numpy(stored), row_shape).numpy(), found
        )


def test_zeros_and_the_smallest_and_largest_numbers_stay_in_range():
    rows = np.array([[0, 0], [1e-45, -1e-44], [65504, -65504], [3e-5, 0]], np.float32)
    found = floats_of(scaled_of(rows), (2,))
    np.testing.assert_array_equal(found, rows.astype(np.float16))


def test_zarr_reads_it_as_the_page_of_the_format_says(ds, pack):
    made = sa1bpack.derive(ds, "a", embed, quantize="int8")
    expected = sa1bpack.open(pack, features="a").column("a")
    found = []
    for name in part_names(made.folder):
        array = zarr.open_group(made.folder / name, mode="r")["values"]
        assert array.metadata.dimension_names == ("sample", "channel", "scale_and_values")
        stored = array[:]
        values = stored[..., 4:] * stored[..., :4].copy().view("<f4")
        found.append(values.astype(np.float16).reshape(len(stored), 8, 16, 16))
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize(
    ("rows", "change", "message"),
    [
        ([[1, 2]], {}, "rows are int64, but quantize is 'int8': choose floats"),
        ([1.0], {}, "rows are single numbers"),
        ([[1.0]], {"quantize": "int4"}, "quantize is 'int4': choose one of int8"),
        ([[1.0]], {"allow_nonfinite": True}, "have no scale"),
        ([[np.nan, 1.0]], {}, "a of image .* has NaN or an infinity.* without quantize"),
        ([[1.0, 1e5]], {}, "a of image .* has NaN or an infinity.* beyond float16"),
    ],
    ids=str,
)
def test_what_cannot_be_quantized_is_refused(ds, rows, change, message):
    rows = np.repeat(np.array(rows), len(ds), 0)
    with pytest.raises(OptionError, match=message):
        sa1bpack.attach(ds, "a", rows, ds.column("image_id"), **{"quantize": "int8"} | change)


def test_a_folder_made_with_it_is_not_continued_without_it_nor_the_reverse(ds):
    small = sa1bpack.derive(ds, "a", embed, quantize="int8")
    with pytest.raises(OutputRefused, match="but quantize is None: choose quantize='int8'"):
        sa1bpack.derive(ds, "a", embed)
    shutil.rmtree(small.folder)
    sa1bpack.derive(ds, "a", embed)
    with pytest.raises(OutputRefused, match="dtype is 'float16', not 'scaled_int8'"):
        sa1bpack.derive(ds, "a", embed, quantize="int8")

"""A notebook shows datasets and batches with a small picture, and with text if there is none."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

import sa1bpack
from sa1bpack.export.show import INLINE_WIDTH


@pytest.fixture(scope="module")
def ds(tmp_path_factory, sample_tar):
    folder = tmp_path_factory.mktemp("inline") / "packed"
    sa1bpack.pack(sample_tar, folder, workers=1, progress=False)
    return sa1bpack.open(folder)


def shown(value) -> Image.Image:
    """The picture; below it stands the text."""
    text = value._repr_html_()
    data, below = re.fullmatch(
        r'<img src="data:image/jpeg;base64,([^"]+)" alt="[^"]+"><pre>(.+)</pre>', text, re.DOTALL
    ).groups()
    assert below.startswith(("&lt;Dataset", "Batch of"))
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_dataset_and_a_batch_are_shown_with_a_small_picture(ds):
    with sa1bpack.Loader(ds, 3, max_masks=8) as loader:
        batch = next(iter(loader))
    pipeline = sa1bpack.transforms.Pipeline(ds, size=128)
    for value in (ds, ds[:1], batch, pipeline(batch)):
        picture = shown(value)
        assert picture.width <= INLINE_WIDTH and np.asarray(picture).std() > 10


def test_what_cannot_be_drawn_is_shown_as_text(ds, monkeypatch):
    prompts = sa1bpack.Collate()([ds[0]])
    del prompts["images"]
    assert prompts._repr_html_() is None and ds[:0]._repr_html_() is None
    monkeypatch.setattr("sa1bpack.export.show.draw_samples", lambda ds, **rows: 1 / 0)
    assert ds._repr_html_() is None
    monkeypatch.setattr(sa1bpack.display, "PICTURES", "sa1bpack.missing")
    assert ds._repr_html_() is None and "3 samples" in repr(ds)

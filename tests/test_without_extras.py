"""Without the folders of all extras, packs of this machine work, a URL is a clear error, and a
notebook shows text."""

import os
import shutil
from pathlib import Path

from commands import python

import sa1bpack

EXTRAS = "remote", "cluster", "raw", "deriving", "export", "exploring", "measuring", "adapters"
EXTRAS += ("cli",)
# Packs, verifies, reads and loads in a copy of the package; then names URLs.
PROGRAM = """
import sys
# An editable installation finds the folder in the clone.
sys.meta_path = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
import sa1bpack
assert sa1bpack.__file__.startswith(sys.argv[1]), sa1bpack.__file__
tar, out = sys.argv[2:]
result = sa1bpack.pack(tar, out, workers=1, image_size=64, mask_size=32)
assert result.images == 3 and sa1bpack.verify(out).ok
ds = sa1bpack.open(out)
assert ds[0]["image"].any()
assert ds._repr_html_() is None and "3 samples" in repr(ds)
pipeline = sa1bpack.transforms.Pipeline(ds)
with sa1bpack.Loader(ds, 2) as loader:
    assert sum(len(pipeline(batch)["images"]) for batch in loader) == 3
calls = (
    lambda: sa1bpack.open("s3://bucket/pack", cache_dir=out + "-cache"),
    lambda: sa1bpack.verify("gs://bucket/pack"),
    lambda: sa1bpack.pack("https://host/sa_000000.tar?sig=SECRET", out + "-2", workers=1),
    lambda: sa1bpack.pack(tar, "s3://bucket/pack", staging=out + "-3", workers=1),
)
for call in calls:
    try:
        call()
    except sa1bpack.errors.MissingPackage as error:
        assert "reads no URLs, because sa1bpack.remote is missing" in str(error), error
        assert "SECRET" not in str(error)
    else:
        raise AssertionError("no error")
"""


def test_without_extras_packs_of_this_machine_work_and_a_url_is_a_clear_error(sample_tar, tmp_path):
    ignored = shutil.ignore_patterns(*EXTRAS, "__pycache__")
    package = Path(sa1bpack.__file__).parent
    copy = shutil.copytree(package, tmp_path / "src/sa1bpack", ignore=ignored)
    kernels = os.environ.get("NUMBA_CACHE_DIR", str(package / "__pycache__"))
    environment = {"PYTHONPATH": str(copy.parent), "NUMBA_CACHE_DIR": kernels}
    words = copy.parent, sample_tar, tmp_path / "pack"
    python("-c", PROGRAM, *words, cwd=copy.parent, env=environment)

"""URLs of what cannot be at one are refused by name."""

from pathlib import Path

import pytest
from small_tars import SMALL

import sa1bpack
from sa1bpack import OptionError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, where a folder named `s3:` would be made."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("url", ["https://host/p", Path("S3://packs/p")], ids=str)
@pytest.mark.parametrize("call", [sa1bpack.pack, sa1bpack.estimate], ids=["pack", "estimate"])
def test_a_url_as_output_or_list_is_refused_and_nothing_is_created(tar, here, call, url):
    scheme = str(url).partition(":")[0].lower()
    for name in ("output", "md5sums", "links"):
        arguments = {"output": here / "pack", name: url}
        with pytest.raises(OptionError, match=f"^{name} is .*{scheme} URLs are not supported"):
            call(tar, **arguments, workers=1, **SMALL)
    if isinstance(url, Path):
        with pytest.raises(OptionError, match=r"^source is .*give a URL as text"):
            call([tar, url], here / "pack", workers=1, **SMALL)
    assert list(here.iterdir()) == []

"""URLs of what cannot be at one are refused by name."""

from pathlib import Path

import pytest
from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack.errors import OptionError


@pytest.fixture
def tar(tmp_path):
    (tmp_path / "tars").mkdir()
    return write_tar(tmp_path / "tars" / "sa_000000.tar", members([1, 2]))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, where a folder named `s3:` would be made."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("url", ["https://host/p", "S3://packs/p"])
@pytest.mark.parametrize("as_path", [False, True], ids=["str", "Path"])
@pytest.mark.parametrize("call", [sa1bpack.pack, sa1bpack.estimate], ids=["pack", "estimate"])
def test_a_url_as_output_or_list_is_refused_and_nothing_is_created(tar, here, call, url, as_path):
    url = Path(url) if as_path else url
    scheme = str(url).partition(":")[0].lower()
    refusal = f"^output is .*{scheme} URLs are not supported; give"
    if call is sa1bpack.pack and not as_path and scheme in ("s3", "gs"):
        refusal = "^output is .* name a folder as `staging`"
    with pytest.raises(OptionError, match=refusal):
        call(tar, url, workers=1, **SMALL)
    for name in ("md5sums", "links"):
        with pytest.raises(OptionError, match=f"^{name} is .*{scheme} URLs are not supported"):
            call(tar, here / "pack", **{name: url}, workers=1, **SMALL)
    if as_path:
        with pytest.raises(OptionError, match=r"^source is .*give a URL as text"):
            call([tar, url], here / "pack", workers=1, **SMALL)
    assert list(here.iterdir()) == []

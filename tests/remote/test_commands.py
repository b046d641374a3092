"""What looks at packs does so at URLs: the same results, from any server, and little is fetched."""

import json
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from azure import use_azure
from batches import all_same
from edited_packs import flip
from PIL import Image
from small_packs import pack_small
from small_tars import changed, members, write_tar

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import FormatError, NotAPack, StoreError
from sa1bpack.export.info import PackInfo

SERVERS = ("s3", "https", "file", "hub")
# Pixels of a sheet that say where the pack is.
_TITLE = 60
KEEP = ["image.place", "annotations.category_id"]
# Where the hub, as these tests serve it, has the files of a data set.
HUB_PATH = "/datasets/user/name/resolve/main/pack"


def kept(record: dict) -> None:
    """Keys that a pack keeps, of an image and of all of its masks but the first."""
    record["image"]["place"] = f"place {record['image']['image_id']}"
    for number, annotation in enumerate(record["annotations"]):
        if number:
            annotation["category_id"] = number


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    """Photos 0 to 8 with as many masks each, one rejected, kept keys and a feature; two shards."""
    folder = tmp_path_factory.mktemp("commands")
    photos = members(range(9), masks=lambda number: number)
    for number in range(9):
        changed(photos, number, kept)
    photos["./sa_5.json"] = b"{ not json"
    tar = write_tar(folder / "sa_000000.tar", photos)
    root = folder / "pack"
    pack_small(tar, root, keep=KEEP, max_masks=None)
    ds = sa1bpack.open(root)
    sa1bpack.attach(ds, "score", np.arange(8.0), ids=ds.column("image_id"))
    texts = {image_id: "x" * image_id for image_id in ds.column("image_id").tolist()}
    sa1bpack.attach(ds, "caption", texts)
    return root


@pytest.fixture(autouse=True)
def folder_of_the_user(monkeypatch):
    """What is kept of packs at URLs is kept in a folder of the test.

    Its path is short: processes exchange file descriptors through sockets in it, and the path of a
    socket has at most 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="user-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module")
def in_s3() -> dict[Path, str]:
    """Folders that were uploaded, which no test changes afterwards, and their URLs."""
    return {}


@pytest.fixture
def url_of(s3_process, proxy, web, in_s3, monkeypatch):
    """url_of(server, folder) → the URL of a copy of the folder there."""
    s3 = s3_process
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    def upload(server: str, root: Path, name: str = "pack") -> str:
        files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        if server == "file":
            return root.as_uri()
        if server == "s3":
            url = in_s3.get(root)
            if url is None:
                url = in_s3[root] = f"s3://packs/commands-{len(in_s3)}/{name}"
                for path, file in files.items():
                    key = f"{url.removeprefix('s3://packs/')}/{path}"
                    s3.put("packs", key, file.read_bytes(), public=True)
            proxy.requests.clear()
            return url
        below = f"/data/{name}" if server == "https" else HUB_PATH
        for path in [path for path in web.files if path.startswith(f"{below}/")]:
            del web.files[path]
        for path, file in files.items():
            web.files[f"{below}/{path}"] = file.read_bytes()
        return f"{web.url}{below}" if server == "https" else "hf://datasets/user/name/pack"

    return upload


# ------------------------------------------------------------------------------------------ info


def comparable(info: PackInfo) -> dict:
    """What a summary says wherever the pack is."""
    facts = info.as_dict()
    facts["counts"] = {
        name: count
        for name, count in facts["counts"].items()
        if name not in ("folders", "disk_bytes")
    }
    for name in ("pack", "command", "notes"):
        del facts[name]
    return facts


@pytest.mark.parametrize("server", SERVERS)
def test_a_summary_is_that_of_the_folder(url_of, pack, server):
    own = sa1bpack.info(pack)
    info = sa1bpack.info(url := url_of(server, pack))
    expected = comparable(own)
    if server in ("https", "hub"):
        assert "features are not listed" in info.as_text().replace("\n             ", " ")
        expected["features"] = {}
    assert comparable(info) == expected
    assert info.roots == (url,) and info.as_text().splitlines()[0] == url
    assert info.as_dict()["pack"] == url
    assert info.disk_bytes == info.bytes and info.folders == 0
    assert f"  objects    {own.files}\n" in info.as_text()
    assert info.command == own.command.replace(str(pack), "OUTPUT")
    assert str(tempfile.gettempdir()) not in info.as_text()


def test_a_summary_fetches_two_files_of_a_shard(url_of, pack, proxy):
    url = url_of("s3", pack)
    sa1bpack.info(url)
    of_shards = [
        path.partition("/shards/")[2] for _, path in proxy.requests if "/shards/sa" in path
    ]
    assert sorted(of_shards) == [
        f"sa_000000-00{number}/{name}"
        for number in range(3)
        for name in ("checksums.xxh128", "zarr.json")
    ]


def test_packs_here_and_there_are_summarized_as_one(url_of, pack, tmp_path):
    other = tmp_path / "other"
    photos = members([20, 21])
    for number in (20, 21):
        changed(photos, number, kept)
    pack_small(write_tar(tmp_path / "sa_1.tar", photos), other, keep=KEEP, max_masks=None)
    own = sa1bpack.info([pack, other])
    url = url_of("s3", other)
    info = sa1bpack.info([pack, url])
    assert comparable(info) == comparable(own) | {
        "packs": info.as_dict()["packs"],
        "features": {name.replace(str(other), url): text for name, text in own.features.items()},
    }
    assert info.as_dict()["packs"][1]["pack"] == url
    assert f"{pack} to {url}" in info.as_text()


def test_a_damaged_record_is_named_by_its_url(url_of, pack, tmp_path):
    root = shutil.copytree(pack, tmp_path / "damaged")
    flip(root / "shards/sa_000000-001/zarr.json", 5)
    url = url_of("s3", root)
    with pytest.raises(FormatError, match=rf"{url}/shards: sa_000000-001/zarr.json came 3 times"):
        sa1bpack.info(url)
    with pytest.raises(NotAPack, match="not a pack"):
        sa1bpack.info(f"{url}/none")


# ---------------------------------------------------------------------------------------- export


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "server, chosen",
    [("s3", {}), ("https", {"image_ids": [8, 2]}), ("file", {"image_ids": [8, 2]}), ("hub", {})],
    ids=SERVERS,
)
def test_records_are_those_of_the_folder(url_of, pack, tmp_path, server, chosen):
    url = url_of(server, pack)
    for name, place in (("own", pack), ("other", url)):
        sa1bpack.export_sa1b(place, tmp_path / name, progress=False, **chosen)
        sa1bpack.export_coco(place, tmp_path / name / "coco.json", progress=False, **chosen)
    own = files_in(tmp_path / "own")
    assert files_in(tmp_path / "other") == own
    assert len(own) == 1 + (2 if chosen else 8)
    assert b"place 8" in own["coco.json"] and b'"category_id": 7' in own["coco.json"]


def test_runs_of_a_shard_or_of_its_samples_are_fetched(url_of, pack, proxy, tmp_path):
    url = url_of("s3", pack)
    sa1bpack.export_sa1b(url, tmp_path / "all", progress=False)
    fetched = [
        path for _, path in proxy.requests if re.search("/(image|mask_bits|run_ends)/c", path)
    ]
    assert len(fetched) == 3 and all("/run_ends/" in path for path in fetched)


@pytest.mark.parametrize("chosen", [{}, {"image_ids": [8, 2]}], ids=["all", "some"])
def test_runs_that_arrive_changed_are_fetched_again_or_named(url_of, pack, proxy, tmp_path, chosen):
    url = url_of("s3", pack)
    sa1bpack.export_sa1b(pack, tmp_path / "own", progress=False, **chosen)
    begun = []

    def once(method: str, path: str, number: int) -> str | None:
        begun.append(path)
        return "flip" if "/run_ends/c" in path and begun.count(path) == 1 else None

    proxy.rule = once
    sa1bpack.export_sa1b(url, tmp_path / "other", progress=False, **chosen)
    assert "flip" in proxy.faults
    assert files_in(tmp_path / "other") == files_in(tmp_path / "own")
    proxy.rule = lambda method, path, number: "flip" if "/run_ends/c" in path else None
    with pytest.raises(FormatError, match="sa_000000-00"):
        sa1bpack.export_sa1b(url, tmp_path / "none", progress=False, **chosen)
    assert not list((tmp_path / "none").rglob("*.json"))


# ----------------------------------------------------------------------------------------- azure


def test_a_container_of_azure_is_read_by_the_same_commands(web, pack, tmp_path, monkeypatch):
    container = use_azure(web, monkeypatch)
    url = f"{container}/packs/one"
    for path, data in files_in(pack).items():
        web.files[f"/{container.removeprefix('az://')}/packs/one/{path}"] = data
    assert comparable(sa1bpack.info(url)) == comparable(sa1bpack.info(pack))
    assert problems(url) == problems(pack) == []
    for name, place in (("own", pack), ("other", url)):
        sa1bpack.export_sa1b(place, tmp_path / name, progress=False, image_ids=[8, 2])
    assert files_in(tmp_path / "other") == files_in(tmp_path / "own")
    options = {"features": ["score", "caption"]}
    assert all_same(sa1bpack.open(url, **options), sa1bpack.open(pack, **options))
    with pytest.raises(NotAPack, match=f"{container}/packs/none: not a pack"):
        sa1bpack.open(f"{container}/packs/none")


# ---------------------------------------------------------------------------------------- report


def text_of_page(path: Path) -> str:
    """The text of a page, without what is told of the run that made it."""
    text = re.sub(r"base64,[^\"]*", "", path.read_text())
    text = re.sub(r"<[^>]*>", " ", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC|[\d.]+ s\b|[\d.]+ [kM]B on disk", "", text)
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    "server, how", [("s3", "sample"), ("https", "none"), ("file", "full"), ("hub", "quick")]
)
def test_a_report_is_that_of_the_folder(url_of, pack, tmp_path, server, how):
    url = url_of(server, pack)
    own = sa1bpack.report(pack, tmp_path / "own.html", verify=how, samples=3, progress=False)
    result = sa1bpack.report(url, tmp_path / "url.html", verify=how, samples=3, progress=False)
    assert result.ok and own.ok
    assert (result.images, result.surveyed) == (own.images, own.surveyed) == (8, 8)
    assert result.verification.verdict == own.verification.verdict
    assert result.verification.covered == own.verification.covered
    texts = {}
    for name, place in (("own", str(pack.resolve())), ("url", url)):
        texts[name] = text_of_page(tmp_path / f"{name}.html").replace(place, "PLACE")
    if server in ("file", "s3"):
        assert texts["url"].replace("OUTPUT", "PLACE") == texts["own"]
    assert "bad-annotation" in texts["url"] and "keys of the JSON" not in texts["url"]
    assert str(tempfile.gettempdir()) not in texts["url"]


# ---------------------------------------------------------------------------------------- verify


def problems(place: Path | str, **options) -> list[tuple]:
    """What `verify` finds, without where the pack is."""
    report = sa1bpack.verify(place, progress=False, **options)
    return sorted(
        (str(problem.shard), str(problem.array), problem.what.replace(str(place), "PACK"))
        for problem in report.problems
    )


@pytest.mark.parametrize("server", ["https", "hub"])
def test_servers_without_listings_are_checked_by_the_checksum_files(url_of, pack, tmp_path, server):
    report = sa1bpack.verify(url_of(server, pack), progress=False)
    own = sa1bpack.verify(pack, progress=False)
    assert report.ok and report.complete and report.counts["samples"] == own.counts["samples"]
    assert "files that do not belong to the pack" in report.notes[-1]
    root = shutil.copytree(pack, tmp_path / "damaged")
    for feature in ("score", "caption"):  # which nothing lists
        shutil.rmtree(root / "side" / feature)
    shard = root / "shards/sa_000000-000"
    flip(shard / "image/c.0.0.0.0", 700)
    flip(shard / "run_ends/c.0", 3)
    (shard / "area/c.0").unlink()
    (root / "shards/sa_000000-001/image/c.0.0.0.0").write_bytes(b"short")
    flip(next(root.glob("side/place/*-000-*/values/c.*")), 1)
    flip(next(root.glob("index-*/image_id/c.0")), 9)
    url = url_of(server, root, "damaged")
    for options in ({}, {"quick": True}, {"part": (2, 2)}):
        own_problems = problems(root, **options)
        assert problems(url, **options) == own_problems
    assert len(problems(root)) >= 6
    (root / "manifest.json").write_text("{")
    assert problems(url_of(server, root, "damaged")) == problems(root)


def test_a_feature_alone_is_checked_where_its_shards_are_listed(url_of, pack):
    side = pack / "side/score"
    report = sa1bpack.verify(url_of("s3", side, "score"), progress=False)
    assert report.ok and report.counts["feature_shards"] == 3
    with pytest.raises(OptionError, match="its feature shards are not known: verify it where"):
        sa1bpack.verify(url_of("https", side, "score"), progress=False)


# ---------------------------------------------------------------------- pictures, features, bench


@pytest.mark.parametrize("server", ["s3", "https"])
def test_samples_selections_and_pictures(url_of, pack, tmp_path, server, command):
    url = url_of(server, pack)
    assert all_same(sa1bpack.open(url), sa1bpack.open(pack))
    for name, place in (("own", pack), ("url", url)):
        words = (place, "-o", tmp_path / f"{name}.png", "--samples", 3)
        assert command("show", *words)[0] == 0
        words = (place, "-o", tmp_path / f"{name}.sel", "--where", "mask_count > 3")
        assert command("subset", *words)[0] == 0
    own = np.asarray(Image.open(tmp_path / "own.png"))
    picture = np.asarray(Image.open(tmp_path / "url.png"))
    below_the_title = slice(_TITLE, None)
    assert np.array_equal(picture[below_the_title], own[below_the_title])
    chosen = sa1bpack.open(tmp_path / "url.sel")
    assert all_same(chosen, sa1bpack.open(tmp_path / "own.sel"))
    sa1bpack.export_sa1b(tmp_path / "url.sel", tmp_path / "json", progress=False)
    assert len(list((tmp_path / "json/sa_000000").iterdir())) == len(chosen)


def brightness(batch: dict) -> np.ndarray:
    """A row for each image."""
    return batch["images"].float().mean(dim=(1, 2, 3))[:, None]


@pytest.mark.parametrize("server", ["s3", "https"])
def test_features_are_made_of_a_pack_at_a_url_and_read_from_another_place(
    url_of, pack, tmp_path, server
):
    url = url_of(server, pack)
    ds = sa1bpack.open(url)
    with pytest.raises(OptionError, match=rf"output is None.* upload it to {url}/side/bright"):
        sa1bpack.derive(ds, "bright", brightness, progress=False)
    with pytest.raises(NotAPack, match=rf"no {url}/side/bright with rows .*: upload its folder"):
        sa1bpack.open(url, features="bright")
    with pytest.raises(OptionError, match=r"and upload it then, such as with `aws s3 sync"):
        sa1bpack.derive(ds, "bright", brightness, output=f"{url}/side/bright")
    sa1bpack.derive(ds, "bright", brightness, output=tmp_path / "bright", progress=False)
    own = sa1bpack.open(pack)
    sa1bpack.derive(own, "bright", brightness, output=tmp_path / "own/bright", progress=False)
    assert files_in(tmp_path / "bright") == files_in(tmp_path / "own/bright")
    side_url = url_of("https" if server == "s3" else "s3", tmp_path / "bright", "bright")
    expected = own.with_options(features=[tmp_path / "bright"])
    for place in (url, pack):  # the pack may be on this machine
        read = sa1bpack.open(place, features=[side_url])
        assert all_same(read, expected)
        options = {"batch_size": 3, "shuffle": True, "max_masks": 2}
        with (
            sa1bpack.Loader(read, **options) as loader,
            sa1bpack.Loader(expected, **options) as own_loader,
        ):
            assert "fetch" in str(loader.plan())
            for batch, own_batch in zip(loader, own_loader, strict=True):
                for key, value in own_batch.items():
                    assert np.array_equal(np.asarray(batch[key]), np.asarray(value)), key


@pytest.mark.parametrize("server, mask_format", [("file", "bits"), ("s3", "none")])
def test_a_benchmark_measures_the_network_in_place_of_the_disk(url_of, pack, server, mask_format):
    url = url_of(server, pack)
    result = sa1bpack.bench(
        url, batch_size=2, duration=0.3, mask_format=mask_format, progress=False
    )
    assert result.pack == url and result.samples == 8
    assert result.ceilings.network > 0 and result.ceilings.disk is None
    assert (result.mask_bytes > 0) == (mask_format != "none")
    assert [*result.lines] == ["Loader", "DataLoader, 0 workers", "DataLoader, 2 workers"]
    for speeds in result.lines.values():
        assert [*speeds] == ["cold"] and speeds["cold"].samples_per_second > 0
    text = result.as_text()
    assert "network, random samples, not kept" in text and "warm" not in text
    json.dumps(result.as_dict())


# ------------------------------------------------------------------------------------- by command


def test_the_commands_print_what_they_print_of_a_folder(url_of, pack, tmp_path, command):
    url = url_of("s3", pack)
    code, out, error = command("info", url, "--json")
    assert (code, error) == (0, "")
    assert json.loads(out)["counts"]["samples"] == 8
    own = command("info", pack, "--sources")
    assert command("info", url, "--sources") == own
    words = ("--format", "coco", "--renumber")
    code, out, error = command("export", url, "-o", tmp_path / "a.json", *words)
    assert (code, error) == (0, "") and "8 images" in out
    code, out, error = command("report", url, "-o", tmp_path / "a.html", "--samples", 1)
    assert (code, error) == (0, "") and "8 images, no problem found" in out
    words = ("bench", pack.as_uri(), "--seconds", 0.2, "--batch-size", 2, "--json")
    code, out, error = command(*words)
    assert (code, error) == (0, "")
    assert json.loads(out)["ceilings"]["network"] > 0


def test_a_store_that_fails_is_an_error_with_its_url(url_of, pack, proxy, tmp_path, command):
    url = url_of("s3", pack)
    proxy.rule = lambda method, path, number: "expired"
    for words in (
        ("info", url),
        ("export", url, "-o", tmp_path / "json"),
        ("report", url, "-o", tmp_path / "a.html"),
        ("bench", url),
    ):
        code, out, error = command(*words)
        assert (code, out) == (4, "") and "credentials have expired" in error and url in error
    with pytest.raises(StoreError):
        sa1bpack.info(url)
    assert not list(tmp_path.iterdir())

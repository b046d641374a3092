"""Packs that are made in a staging folder and uploaded, to an S3 server on loopback."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
import traceback
from hashlib import md5

import pytest
from azure import use_azure
from batches import all_same
from commands import flags_of
from edited_packs import lose_shard
from s3_server import s3_client, use_s3
from small_tars import members, write_tar

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import NotAPack, OptionsDiffer, OutputRefused, StoreError

OPTIONS = {"workers": 1, "image_size": 64, "mask_size": 32, "samples_per_shard": 2}
FLAGS = flags_of(OPTIONS)


@pytest.fixture(scope="module")
def expected(sample_tar, tmp_path_factory):
    """The pack of the sample tar on this machine."""
    out = tmp_path_factory.mktemp("expected") / "pack"
    sa1bpack.pack(sample_tar, out, **OPTIONS)
    return out


def upload(sample_tar, tmp_path, name, **options):
    options = OPTIONS | {"staging": tmp_path / "staging"} | options
    return sa1bpack.pack(sample_tar, f"s3://packs/{name}", **options)


def objects(name: str) -> dict[str, str]:
    """Key → md5 of everything in a folder of the bucket."""
    client, found = s3_client(), {}
    for item in client.list_objects_v2(Bucket="packs", Prefix=f"{name}/")["Contents"]:
        tag = item["ETag"].strip('"')
        if "-" in tag:  # written in parts, whose ETag is another
            tag = md5(client.get_object(Bucket="packs", Key=item["Key"])["Body"].read()).hexdigest()
        found[item["Key"].removeprefix(f"{name}/")] = tag
    return found


def files(root) -> dict[str, str]:
    """Path → md5 of every file of a pack, but for working files."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    kept = {name: path for name, path in found.items() if not name.startswith(".")}
    return {name: md5(path.read_bytes()).hexdigest() for name, path in kept.items()}


@pytest.fixture(scope="module")
def staging(proxy_process, sample_tar, tmp_path_factory):
    """The staging folder of the pack `one`, which was uploaded."""
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        use_s3(proxy_process.url, patch)
        proxy_process.begin()  # a test of another file may have left its faults
        assert upload(sample_tar, folder, "one").complete
        # The manifest is the last that changes.
        puts = [path for method, path in proxy_process.requests if method == "PUT"]
        assert puts[-1].startswith("/packs/one/manifest.json")
    return folder / "staging"


def test_the_bucket_has_the_files_of_a_local_pack(
    staging, proxy, sample_tar, tmp_path, expected, command
):
    assert objects("one") == files(expected)
    own = sa1bpack.open(expected)
    ds = sa1bpack.open("s3://packs/one", cache_dir=tmp_path / "cache")
    assert all_same(ds, own)
    images = list(staging.rglob("image/c*"))
    assert len(images) == 2
    assert all(path.stat().st_blocks * 512 <= 4096 < path.stat().st_size for path in images)
    proxy.requests.clear()
    words = ("pack", sample_tar, "-o", "s3://packs/one", "--staging", staging, *FLAGS)
    code, out, _ = command(*words)
    assert code == 0 and "s3://packs/one: 3 images" in out
    # Of a complete pack nothing is written.
    assert not [path for method, path in proxy.requests if method == "PUT"]


def test_a_run_that_failed_is_continued_without_its_staging_folder(
    proxy, sample_tar, tmp_path, expected
):
    proxy.rule = lambda method, path, number: (
        "expired" if method == "PUT" and "sa_000000-001/mask_bits/c" in path else None
    )
    with pytest.raises(StoreError, match="credentials have expired; log in again") as caught:
        upload(sample_tar, tmp_path, "continued")
    assert proxy.faults == ["expired"]
    assert "test-secret-key" not in "".join(traceback.format_exception(caught.value))
    keys = objects("continued")
    assert "manifest.json" not in keys
    assert "shards/sa_000000-000/checksums.xxh128" in keys
    proxy.begin()
    shutil.rmtree(tmp_path / "staging")
    again = {"workers": 1, "staging": tmp_path / "staging"}  # the options are in the shards
    result = sa1bpack.pack(sample_tar, "s3://packs/continued", **again)
    assert (result.images, result.new_images) == (3, 1)
    assert objects("continued") == files(expected)
    puts = [path for method, path in proxy.requests if method == "PUT"]
    assert puts and not [path for path in puts if "sa_000000-000/" in path]
    shutil.rmtree(tmp_path / "staging")
    assert sa1bpack.pack(sample_tar, "s3://packs/continued", **again).packed_before == 1
    shutil.rmtree(tmp_path / "staging")
    with pytest.raises(OptionsDiffer, match="image_size: the pack has 64, this run asks for 32"):
        upload(sample_tar, tmp_path, "continued", image_size=32)


# Object → what becomes of the first request that writes it, or reads it back.
WRITTEN = {"image": "slow down", "mask_bits": "refuse", "run_ends": "cut", "bbox": "stall"}
READ = {"image": "flip", "mask_bits": "truncate", "run_ends": "cut", "bbox": "slow down",
        "area": "stall", "size": "refuse"}  # fmt: skip


def test_faults_on_the_way_are_repeated_until_the_bytes_that_came_back_are_those_written(
    proxy, sample_tar, tmp_path
):
    def rule(method, path, number):
        array = path.split("/")[-2]
        faults = {"PUT": WRITTEN, "GET": READ}.get(method, {})
        return faults.get(array) if number == 0 and "/c." in path else None

    proxy.rule = rule
    assert upload(sample_tar, tmp_path, "spoilt", samples_per_shard=3).images == 3
    assert set(proxy.faults) == {*WRITTEN.values(), *READ.values()}
    puts = [path for method, path in proxy.requests if method == "PUT" and "/image/c" in path]
    assert len(puts) == 3  # other bytes came back: written again
    proxy.begin()
    assert sa1bpack.verify("s3://packs/spoilt").ok


def test_bytes_that_never_come_back_as_written_are_an_error_that_names_the_object(
    proxy, sample_tar, tmp_path
):
    proxy.rule = lambda method, path, number: (
        "flip" if method == "GET" and "000/area" in path else None
    )
    said = r"s3://packs/never/shards/sa_000000-000/area/\S+: came back 3 times .* was written"
    with pytest.raises(StoreError, match=said):
        upload(sample_tar, tmp_path, "never")
    assert "manifest.json" not in objects("never")


def test_large_objects_are_written_in_parts_each_of_which_may_fail(
    proxy, sample_tar, tmp_path, small_requests
):
    def rule(method, path, number):
        if number or "000/image/c" not in path:
            return None
        if method == "GET":
            return "flip"
        return {"1": "slow down", "2": "refuse"}.get(path.rpartition("partNumber=")[2][:1])

    proxy.rule = rule
    assert upload(sample_tar, tmp_path, "large", image_size=192).complete
    requests = [request for request in proxy.requests if "000/image/c" in request[1]]
    assert {path.split("partNumber=")[1][0] for _, path in requests if "partNumber" in path} == {
        *"1234"
    }
    assert set(proxy.faults) == {"flip", "refuse", "slow down"}
    reads = [path for method, path in requests if method == "GET"]
    assert len(reads) == 2 * 14  # written, and read, twice: 2 images of 192 x 192 x 3 bytes
    assert sa1bpack.verify("s3://packs/large").ok


def test_a_container_of_azure_gets_the_pack_too_and_what_it_loses_is_written_again(
    web, sample_tar, tmp_path, expected, monkeypatch, small_requests
):
    container = use_azure(web, monkeypatch)
    folder = f"/{container.removeprefix('az://')}/packs/one/"
    options = OPTIONS | {"staging": tmp_path / "staging"}

    def written() -> dict[str, str]:
        blobs = {path: data for path, data in web.files.items() if path.startswith(folder)}
        return {path.removeprefix(folder): md5(data).hexdigest() for path, data in blobs.items()}

    assert sa1bpack.pack(sample_tar, f"{container}/packs/one", **options).complete
    assert written() == files(expected)
    assert any(len(blocks) > 1 for blocks in web.blocks.values())  # large objects, in parts
    for path in [path for path in web.files if path.startswith(f"{folder}shards/sa_000000-001/")]:
        del web.files[path]
    assert not sa1bpack.verify(f"{container}/packs/one").ok
    assert sa1bpack.pack(sample_tar, f"{container}/packs/one", **options).complete
    assert written() == files(expected)


# A process that uploads in parts of 4 KiB, of which objects of a small pack have several.
CHILD = """
import sys
from sa1bpack.remote import bucket
from sa1bpack.cli.main import main
bucket.PART_BYTES = 4096
sys.exit(main(sys.argv[1:]))
"""


def test_a_process_killed_between_two_parts_leaves_no_pack_and_the_next_run_completes_it(
    proxy, sample_tar, tmp_path, expected, monkeypatch
):
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    proxy.stall_seconds = 60

    def rule(method, path, number):  # of the shard that is sent second, which may be either
        one_is_sent = any("/checksums" in sent for _, sent in proxy.requests)
        return "stall" if "image/c" in path and "partNumber=3" in path and one_is_sent else None

    proxy.rule = rule
    where = ("-o", "s3://packs/killed", "--staging", tmp_path / "staging")
    child = subprocess.Popen([sys.executable, "-c", CHILD, "pack", sample_tar, *where, *FLAGS])
    try:
        limit = time.monotonic() + 120
        while "stall" not in proxy.faults:
            assert child.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    while proxy.passing:  # what the child has sent arrives
        time.sleep(0.01)
    keys = objects("killed")
    assert "manifest.json" not in keys
    assert sum(key.endswith("/checksums.xxh128") for key in keys) == 1
    with pytest.raises(NotAPack):
        sa1bpack.open("s3://packs/killed", cache_dir=tmp_path / "cache", cache_size="1 GB")
    proxy.begin()
    assert upload(sample_tar, tmp_path, "killed").images == 3
    assert objects("killed") == files(expected)


def test_a_staging_folder_is_never_taken_for_its_pack(
    staging, proxy, sample_tar, tmp_path, expected
):
    before = files(staging)
    calls = (
        lambda: sa1bpack.open(staging),
        lambda: sa1bpack.verify(staging),
        lambda: sa1bpack.repair(staging, sample_tar, workers=1, progress=False),
        lambda: sa1bpack.merge([staging], tmp_path / "out"),
        lambda: sa1bpack.pack(sample_tar, staging, **OPTIONS),
    )
    for call in calls:
        with pytest.raises((NotAPack, OutputRefused), match=r"has no manifest|holds no manifest"):
            call()
    assert files(staging) == before
    own = shutil.copytree(expected, tmp_path / "own")
    with pytest.raises(OutputRefused, match="holds a pack of this machine"):
        sa1bpack.pack(sample_tar, "s3://packs/own", staging=own, **OPTIONS)
    assert files(own) == files(expected)


def test_what_was_removed_from_the_bucket_is_packed_again_and_an_older_index_removed(
    staging, proxy, sample_tar, expected
):
    client = s3_client()
    for key in objects("one"):
        if "sa_000000-000/" in key or "index-" in key:
            client.delete_object(Bucket="packs", Key=f"one/{key}")
    older = {"Bucket": "packs", "Key": "one/index-00000000/zarr.json"}
    client.put_object(Body=b"of an earlier state of the pack", **older)
    assert upload(sample_tar, staging.parent, "one").new_images == 2
    assert objects("one") == files(expected)


@pytest.mark.parametrize("call", ["open", "rename"])
def test_a_shard_restored_without_its_mark_is_not_uploaded_over_the_one_in_the_bucket(
    staging, proxy, sample_tar, expected, tmp_path, monkeypatch, call
):
    """Of what is in the bucket, the staging folder has holes in place of the large arrays."""
    made, failed = getattr(os, call), []

    def fails_once(path, *more, **named):
        target = more[0] if call == "rename" else path
        if "/.uploaded/" in str(target) and not failed:
            failed.append(target)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        return made(path, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails_once)
        with contextlib.suppress(OSError):
            upload(sample_tar, tmp_path / "new", "one")
    assert failed or call == "rename"
    assert upload(sample_tar, tmp_path / "new", "one").complete
    assert objects("one") == files(expected)


@pytest.mark.parametrize("number", [0, 1])
def test_a_pack_in_a_bucket_that_lost_a_shard_says_so_and_the_repeated_command_mends_it(
    proxy, sample_tar, expected, tmp_path, caplog, number
):
    """As an earlier release may have left one that was then uploaded."""
    name = f"lossy{number}"
    shutil.copytree(expected, tmp_path / name)
    lose_shard(tmp_path / name, f"sa_000000-{number:03}")
    for path in (tmp_path / name).rglob("*"):
        key = path.relative_to(tmp_path).as_posix()
        if path.is_file() and not key.startswith(f"{name}/."):
            s3_client().put_object(Bucket="packs", Key=key, Body=path.read_bytes())
    sa1bpack.open(f"s3://packs/{name}", cache_dir=tmp_path / "cache")
    assert f"the shard sa_000000-{number:03} is lost" in caplog.text
    assert upload(sample_tar, tmp_path, name).complete
    assert objects(name) == files(expected)


def test_what_does_not_fit_a_tar_in_another_order_is_named_to_be_removed_from_the_bucket(
    proxy, tmp_path
):
    tar = write_tar(tmp_path / "sa_1.tar", members(range(6)), shuffle=None, compress=False)
    tar.write_bytes(tar.read_bytes()[: tar.stat().st_size * 3 // 4])
    assert "sa_1" in upload(tar, tmp_path, "order").failed
    begun = {key.split("/")[1] for key in objects("order") if key.startswith("shards/sa_")}
    assert len(begun) == 2
    write_tar(tar, members(reversed(range(6))), shuffle=None, compress=False)
    message = str(upload(tar, tmp_path, "order").failed["sa_1"])
    folders = ", ".join(f"shards/{name}/" for name in sorted(begun))
    assert f"remove {folders} from s3://packs/order" in message
    for key in objects("order"):
        if key.startswith("shards/sa_"):
            s3_client().delete_object(Bucket="packs", Key=f"order/{key}")
    assert upload(tar, tmp_path, "order").complete
    sa1bpack.pack(tar, tmp_path / "here", **OPTIONS)
    assert objects("order") == files(tmp_path / "here")


def test_a_folder_of_something_else_is_refused(proxy, sample_tar, tmp_path):
    s3_client().put_object(Bucket="packs", Key="other/readme.txt", Body=b"x")
    with pytest.raises(OutputRefused, match=r"holds readme\.txt"):
        upload(sample_tar, tmp_path, "other")
    assert not (tmp_path / "staging").exists()


def test_a_url_needs_a_staging_folder_and_a_folder_in_the_bucket(proxy, sample_tar, tmp_path):
    with pytest.raises(OptionError, match="and only then"):
        sa1bpack.pack(sample_tar, tmp_path / "out", staging=tmp_path, **OPTIONS)
    with pytest.raises(StoreError, match="there is no such bucket"):
        sa1bpack.pack(sample_tar, "s3://nowhere/x", staging=tmp_path / "staging", **OPTIONS)
    with pytest.raises(OptionError, match=r"'s3://packs/x', with a query"):
        sa1bpack.pack(sample_tar, "s3://packs/x?SECRET", staging=tmp_path / "staging", **OPTIONS)
    with pytest.raises(OptionError, match="name a bucket and a folder"):
        sa1bpack.pack(sample_tar, "s3://packs", staging=tmp_path, **OPTIONS)


def test_a_staging_folder_without_room_for_four_shards_is_refused_with_both_numbers(
    s3, sample_tar, tmp_path, free
):
    options = {**OPTIONS, "samples_per_shard": 1}
    s3.make_bucket("room")
    free(sa1bpack.estimate(sample_tar, tmp_path / "other", **options).needed_bytes // 3)
    with pytest.raises(OutputRefused, match=r"staging takes about .* 4 shards, and .* are free"):
        sa1bpack.pack(sample_tar, "s3://room/pack", staging=tmp_path / "staging", **options)
    assert not (tmp_path / "staging").exists()
    options |= {"ignore_space": True, "staging": tmp_path / "staging"}
    assert sa1bpack.pack(sample_tar, "s3://room/pack", **options).complete

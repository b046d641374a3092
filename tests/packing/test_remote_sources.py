"""Tars are packed from the web and from object stores as from files, and no link is kept."""

import glob
import json
import random
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from commands import finish, pack_command, start, wait_until
from edited_packs import flip
from fault_server import cut, dropped, flipped, stalled, status, together
from on_ray import on_ray
from s3_server import s3_client, use_s3
from small_tars import SMALL, contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack.errors import OutputRefused, SourceCorrupt, SourceError

TARS = ("sa_000010.tar", "sa_000011.tar")
SECRETS = ("SECRET", "oh=", "cdn/m1", "test-secret-key")


@pytest.fixture
def served(web, long_tars):
    """The server with both tars, at paths without their names, as a content network has them."""
    for tar in long_tars:
        web.files[f"/cdn/m1/{tar.stem[-2:]}An9.bin"] = tar.read_bytes()
    return web


@pytest.fixture
def links(served, tmp_path):
    """A list of links as SA-1B's page offers it."""
    path = tmp_path / "links.txt"
    lines = [f"{name}\t{served.url}/cdn/m1/{name[7:9]}An9.bin?oh=SECRET" for name in TARS]
    path.write_text("\r\n".join(["file_name\tcdn_link", *reversed(lines), lines[0], ""]))
    return path


@pytest.fixture
def pack(command, root):
    """pack(*sources and options): (exit code, stdout, stderr) of a command that makes `root`."""
    return lambda *words, workers=1: command(*pack_command([*words], root, workers=workers))


def path_of(name: str) -> str:
    return f"/cdn/m1/{name[7:9]}An9.bin"


def assert_no_secret(*texts: str, root=None) -> None:
    """Neither texts nor any file below `root` hold what a link has besides the name and host."""
    for path in root.rglob("*") if root else ():
        if path.is_file():
            texts += (path.read_bytes().decode("latin-1"), path.name)
    for text in texts:
        assert not [secret for secret in SECRETS if secret in text]


def test_links_make_the_pack_over_a_bad_network(served, links, long_pack, root, pack):
    """The pack is that of the files, and no link is kept or said."""
    rng = random.Random(0)
    for name in TARS:
        size = len(served.files[path_of(name)])
        cuts = [cut(rng.randrange(size)) for _ in range(3)]
        served.faults[path_of(name)] = [status(503), *cuts, dropped, status(429), cut(0)]
    code, out, error = pack("--links", links, workers=2)
    assert code == 0 and contents(root) == long_pack
    assert "sa1bpack: sa_000010.tar (from 127.0.0.1): " in error and "asking again" in error
    assert_no_secret(out, error, root=root)
    requests = len(served.requests)
    code, out, _ = pack("--links", links, workers=2)
    assert code == 0 and "nothing to do" in out
    assert len(served.requests) == requests  # nothing is asked of what is packed


@pytest.mark.parametrize("by", ["list", "URL"])
def test_what_is_refused_is_tried_again(served, links, long_tars, long_pack, root, pack, by):
    """It is named, the other tars are packed, and the next run resumes."""
    given, path = ["--links", links], path_of(TARS[0])
    named = "sa_000010.tar (from 127.0.0.1): the server answers 403"
    if by == "URL":
        served.files |= {f"/t/{tar.name}": tar.read_bytes() for tar in long_tars}
        given = [f"{served.url}/t/{tar.name}?oh=SECRET" for tar in long_tars]
        path, named = f"/t/{TARS[0]}", f"{served.url}/t/sa_000010.tar: the server answers 403"
    served.faults[path] = [status(403)]
    code, out, error = pack(*given)
    assert code == 1 and "24 images" in out
    assert f"sa_000010 was given up: {named}" in error and "sa_000011" not in error
    assert "download the list of links again" in error or by == "URL"
    assert_no_secret(out, error, root=root)
    served.requests.clear()
    assert pack(*given)[0] == 0
    assert {path for path, _, _ in served.requests} == {path}
    assert contents(root) == long_pack


def test_several_tars_are_downloaded_at_once(served, links, long_pack, tmp_path):
    """Each is answered only when the other has been asked for."""
    barrier = threading.Barrier(2)
    for name in TARS:
        served.faults[path_of(name)] = [cut(512), together(barrier)]
    assert pack_small((), tmp_path / "pack", links=links, workers=2).complete
    assert contents(tmp_path / "pack") == long_pack


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_ended_while_it_waits_for_bytes_resumes(served, links, long_pack, root, number):
    """What is packed is not asked for again."""
    served.faults[path_of(TARS[1])] = [cut(512), stalled(5000)]
    process = start(*pack_command(["--links", links], root, "--downloads", 1, workers=2))

    def one_is_complete_and_one_waits() -> bool:
        waits = len(served.requests_of(path_of(TARS[1]))) == 2
        return waits and b'"sa_000010"' in (root / "manifest.json").read_bytes()

    wait_until(one_is_complete_and_one_waits, process)
    process.send_signal(number)
    out, error = finish(process)[1:]
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert_no_secret(out, error, root=root)
    served.requests.clear()
    assert pack_small((), root, links=links).complete
    assert served.requests_of(path_of(TARS[0])) == []
    assert contents(root) == long_pack


def test_wrong_bytes_are_noticed_and_nothing_of_the_tar_stays(served, links, long_pack, root):
    size = len(served.files[path_of(TARS[0])])
    served.faults[path_of(TARS[0])] = [cut(512), flipped(size - 300)]
    result = pack_small((), root, links=links)
    assert isinstance(result.failed["sa_000010"], SourceCorrupt)
    assert "repeat the command; if it fails again" in str(result.failed["sa_000010"])
    assert not list(root.glob("shards/sa_000010*"))
    assert pack_small((), root, links=links).complete
    assert contents(root) == long_pack


def test_an_estimate_reads_beginnings_alone_and_names_what_fails(served, links, root, pack):
    code, out, _ = pack("--links", links, "--dry-run")
    assert code == 0 and "sources   2 with" in out
    served.faults[path_of(TARS[0])] = [status(403)]
    code, out, error = pack("--links", links, "--dry-run")
    assert code == 1 and "cannot be read: 1 source" in out and "sa_000010 cannot be read: " in error
    assert_no_secret(out, error)
    assert not root.exists()


def test_a_repair_downloads_its_tars_alone(served, links, long_tars, long_pack, root, command):
    """What it needs, and nothing else."""
    pack_small(long_tars, root)
    flip(next((root / "shards/sa_000011-002/image").glob("c*")), 100)
    served.faults[path_of(TARS[1])] = [status(410)]
    repair = ("repair", root, "--links", links, "--workers", 1)
    code, out, error = command(*repair)
    assert code == 1 and "sa_000011-002 is still damaged" in error and "answers 410" in error
    assert_no_secret(out, error)
    served.faults[path_of(TARS[1])] = [cut(512), cut(9000)]
    assert command(*repair)[0] == 0
    assert served.requests_of(path_of(TARS[0])) == []
    assert contents(root) == long_pack


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no link"),
        ("sa_1.tar https://h/SECRET\n", "line 1: not a file name, a tab and a URL"),
        ("sa_0.tar\thttps://h/a\nfile_name\tcdn_link\n", "line 2: not a file name, a tab"),
        ("a/sa_1.tar\thttps://h/SECRET\n", "line 1: 'a/sa_1.tar' is no name of a file"),
        ("sa_1.tar\thttps://me:SECRET@h/a\n", "line 1 is 'https://h/a', with a user name"),
        ("sa_1.tar\thttps://h/a?SECRET\nsa_1.tar\thttps://h/a?SECRETS\n", "line 2: a second, diff"),
        ("sa_1.tar\thttps://h/a\ud800".encode("utf-8", "surrogatepass"), "it is not UTF-8"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_with_its_line_but_no_links(tmp_path, text, fault):
    path = tmp_path / "links.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SourceError, match=fault) as caught:
        pack_small((), tmp_path / "pack", links=path)
    assert_no_secret(str(caught.value))
    assert not (tmp_path / "pack").exists()


def test_a_bucket_is_packed_by_a_pattern_as_files_are(s3, long_tars, long_pack, root, pack):
    s3.make_bucket("tars")
    for tar in long_tars:
        s3.put("tars", f"sa1b/{tar.name}", tar.read_bytes())
    s3.put("tars", "sa1b/readme.txt", b"")
    code, out, error = pack("s3://tars/sa1b/sa_*.tar")
    assert code == 0 and contents(root) == long_pack
    assert_no_secret(out, error, root=root)
    code, _, error = pack("s3://tars/none/*.tar")
    assert code == 2 and "s3://tars/none/*.tar: nothing matches this pattern" in error


# What a pattern stands for in a folder is asked of the standard library.
KEYS = (
    "sa_1.tar", "sa_2.tar", ".sa_3.tar", "old/sa_4.tar", "old/older/sa_5.tar", ".old/sa_6.tar",
    "a b/sa #7.tar", "sa_?8.tar", "[x]/sa_9.tar", "readme.txt",
)  # fmt: skip


PATTERNS = (
    "*.tar", "sa_?.tar", "*/sa_*.tar", "**/*.tar", "**", "?.tar", "a b/sa #*.tar", ".*/*", "x*/*",
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(PATTERNS)))
def test_a_pattern_stands_for_what_it_stands_for_in_a_folder(s3, tmp_path, number):
    """`*` went through folders: older tars below that of the new ones were packed as well."""
    bucket = f"patterns-{number}"
    pattern = f"tars/{PATTERNS[number]}"
    s3.make_bucket(bucket)
    for key in KEYS:
        file = tmp_path / "tars" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        s3.put(bucket, f"tars/{quote(key)}", b"no tar")
    paths = map(Path, glob.glob(pattern, root_dir=tmp_path, recursive=True))
    expected = {path.name.removesuffix(".tar") for path in paths if (tmp_path / path).is_file()}
    failed = set()
    try:
        failed = set(pack_small(f"s3://{bucket}/{pattern}", tmp_path / "pack").failed)
    except SourceError as error:
        assert f"s3://{bucket}/{pattern}: nothing matches this pattern" in str(error)
    assert failed == expected


def test_a_key_with_wildcards_spaces_or_a_hash_is_that_object(s3, sample_tar, tmp_path):
    s3.make_bucket("keys")
    for key in ("a b/sa #1.tar", "[x]/sa_?2.tar"):
        s3.put("keys", quote(key), sample_tar.read_bytes())
        result = pack_small(f"s3://keys/{key}", tmp_path / key)
        assert result.images == 3 and not result.failed


def test_an_object_that_cannot_be_listed_is_named(s3, tmp_path):
    s3.make_bucket("unlisted")
    where = {"Bucket": "unlisted", "Key": "tars/../sa_1.tar"}
    s3_client().put_object(Body=b"", **where)
    with pytest.raises(SourceError, match=r"the object 'tars/\.\./sa_1.tar' has a name that"):
        pack_small("s3://unlisted/tars/sa_*.tar", tmp_path)
    error = pack_small("s3://unlisted/tars//sa_1.tar", tmp_path / "pack").failed["sa_1"]
    assert "no part of a key may be empty" in str(error)


@pytest.mark.parametrize("listed", [True, False])
def test_without_the_extra_the_error_says_what_to_install(
    tmp_path, monkeypatch, root, pack, listed
):
    """Nothing is begun."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    url, links = "s3://bucket/sa_000010.tar", tmp_path / "links.txt"
    links.write_text(f"sa_000010.tar\t{url}\n")
    code, _, error = pack(*(["--links", links] if listed else [url]))
    assert code == 4 and "pip install 'obstore>=0.8' 'botocore>=1.34'" in error
    assert not root.exists()


@pytest.mark.parametrize(
    ("code", "fault"),
    [(404, "there is no such object"), (403, "access was refused"), (412, "has changed since")],
)
def test_an_unreadable_object_is_named_and_the_others_packed(
    web, long_tars, tmp_path, monkeypatch, code, fault
):
    use_s3(web.url, monkeypatch)
    bucket = f"refused-{web.url[-5:]}"  # a bucket that was opened stays so, and this is another one
    for tar in long_tars:
        web.files[f"/{bucket}/{tar.name}"] = tar.read_bytes()
    web.faults[f"/{bucket}/sa_000010.tar"] = [status(code)]
    urls = [f"s3://{bucket}/{tar.name}" for tar in long_tars]
    result = pack_small(urls, tmp_path / "pack")
    assert list(result.failed) == ["sa_000010"] and result.images == 24
    with pytest.raises(SourceError, match=rf"^s3://{bucket}/sa_000010\.tar: .*{fault}"):
        raise result.failed["sa_000010"]
    assert_no_secret(str(result.failed["sa_000010"]))


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_faulty_store_makes_the_pack(web, tmp_path, monkeypatch, scheme):
    """The server plays the store, which this client asks for nothing but GET.

    Of Google Cloud a key file of an emulator names it, which asks for no token.
    """
    use_s3(web.url, monkeypatch)
    key = {"gcs_base_url": web.url, "disable_oauth": True}
    key |= dict.fromkeys(("private_key", "private_key_id", "client_email"), "")
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
    rng = random.Random(0)
    found = members([1]) | {"./filler": rng.randbytes(9 << 20)} | members([2])  # three ranges
    tar = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None)
    path, data = "/faulty/sa_000000.tar", tar.read_bytes()
    web.files[path] = data
    cuts = [cut(rng.randrange(4 << 20)) for _ in range(3)]
    web.faults[path] = [status(503), *cuts, status(500), dropped]
    pack_small(tar, tmp_path / "whole")
    url = f"{scheme}://faulty/sa_000000.tar"
    assert pack_small(url, tmp_path / "pack").complete
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")
    ranges = web.requests_of(path)
    assert ranges[-1].startswith("bytes=") and ranges[-1] != "bytes=0-"


@pytest.mark.parametrize("engine", ["one run", "part", "ray"])
def test_urls_without_room_are_refused_before_all(web, long_tars, root, free, engine):
    """Their sizes are asked for first."""
    for tar in long_tars:
        web.files[f"/t/{tar.name}"] = tar.read_bytes()
    urls = [f"{web.url}/t/{tar.name}" for tar in long_tars]
    free(1000)
    call = sa1bpack.pack if engine == "one run" else partial(sa1bpack.pack_part, part=(1, 2))
    if engine == "ray":
        call = on_ray("pack")
    with pytest.raises(OutputRefused, match="continue with --ignore-space"):
        call(urls, root, workers=1, **SMALL)
    assert not root.exists()


def test_what_a_link_leads_to_in_place_of_a_tar_is_called_what_it_is(web, tmp_path):
    web.files["/a/sa_1.tar"] = b"<!DOCTYPE html><html>Log in</html>"
    web.files["/a/sa_2.tar"] = b"PK\3\4" + bytes(range(256)) * 3
    web.files["/a/sa_3.tar.ab"] = bytes(range(1, 256)) * 3
    urls = [f"{web.url}/a/{name}?oh=SECRET" for name in ("sa_1.tar", "sa_2.tar", "sa_3.tar.ab")]
    result = pack_small(urls, tmp_path / "pack")
    page, archive, part = (str(result.failed[name]) for name in ("sa_1", "sa_2", "sa_3.tar.ab"))
    assert "it is a web page, where a tar is expected" in page
    assert "unpack it, `unzip sa_2.tar -d FOLDER`" in archive
    assert "join all parts in the order of their numbers, `cat sa_3.tar.* > sa_3.tar`" in part
    assert_no_secret(page, archive, part)

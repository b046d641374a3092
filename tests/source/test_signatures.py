"""What is no tar of pairs is named, with what to do with it, wherever a tar is asked for."""

import bz2
import contextlib
import functools
import gzip
import io
import json
import lzma
import pickle
import re
import shutil
import sqlite3
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_tars import (
    SMALL,
    members,
    pack_small,
    photo,
    pixels_of,
    record,
    rejects_of,
    tar_bytes,
    write_tar,
)

import sa1bpack
from sa1bpack.errors import SourceError
from sa1bpack.signatures import HEAD_BYTES, format_of
from sa1bpack.source.find import open_source

PAIRS = members(range(1, 4))


def zipped() -> bytes:
    """The files of the pairs in a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in PAIRS.items():
            archive.writestr(name.removeprefix("./"), data)
    return file.getvalue()


@functools.cache
def picture(kind: str) -> bytes:
    """A picture in a format of PIL's."""
    file = io.BytesIO()
    pixels_of(1).save(file, kind)
    return file.getvalue()


def database() -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table images (id integer)")
        return connection.serialize()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(100))
    return file.getvalue()


def plain() -> bytes:
    return tar_bytes(PAIRS.items())


TEXT = "file_name\tcdn_link\nsa_000000.tar\thttps://example.org/sa_000000.tar?sign=1\n"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 11000000000\n"
# Name → its bytes, what the message calls it, and a part of its remedy.
FILES: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "zip": (zipped, "a zip archive", "unzip "),
    "empty zip": (lambda: b"PK\5\6" + bytes(18), "an empty zip archive", "unzip "),
    "xz": (lambda: lzma.compress(plain()), "an xz stream", "xz -dc "),
    "lzma": (
        lambda: lzma.compress(plain(), lzma.FORMAT_ALONE), "an lzma stream", "xz --format=lzma",
    ),
    "bz2": (lambda: bz2.compress(plain()), "a bzip2 stream", "bzip2 -dc "),
    "zstd": (lambda: b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 3, "a zstd stream", "zstd -dc "),
    "lz4": (lambda: b"\x04\x22\x4d\x18" + bytes(range(256)) * 3, "an lz4 stream", "lz4 -dc "),
    "7z": (lambda: b"7z\xbc\xaf\x27\x1c" + bytes(range(256)) * 3, "a 7z archive", "7z x "),
    "rar": (lambda: b"Rar!\x1a\x07\1\0" + bytes(range(256)) * 3, "a rar archive", "unrar x "),
    "Arrow": (lambda: b"ARROW1\0\0" + bytes(range(256)) * 3, "an Arrow file", "from-your-dataset"),
    "SQLite": (database, "an SQLite database", "from-your-dataset"),
    "numpy": (array, "a numpy array", "from-your-dataset"),
    "pickle": (lambda: pickle.dumps(list(range(900))), "a pickle", "from-your-dataset"),
    "JPEG": (lambda: photo(1), "a JPEG image", "pack the folder"),
    "PNG": (lambda: picture("PNG"), "a PNG image", "pack the folder"),
    "record": (lambda: PAIRS["./sa_1.json"], "a JSON text", "pack the folder"),
    "links": (lambda: TEXT.encode(), "a list of links", "--links "),
    "md5 sums": (lambda: b"0" * 32 + b"  sa_000000.tar\n", "a list of md5 sums", "--md5sums "),
    "web page": (lambda: b"\n<!DOCTYPE html>\n<html>" * 40, "a web page", "log in"),
    "XML": (lambda: b"<?xml version='1.0'?><Error>" * 40, "an XML document", "expired link"),
    "Git LFS": (lambda: LFS.encode(), "a pointer of Git LFS", "git lfs pull"),
    "git-annex": (
        lambda: b"/annex/objects/MD5E-s11--1.tar\n", "a pointer of git-annex", "git annex get ",
    ),
    "text": (lambda: "é, a note\n".encode() * 90, "a text", "head "),
    "UTF-16": (lambda: "a note\n".encode("utf-16"), "UTF-16 text", "iconv "),
    "empty": (lambda: b"", "an empty file", "download it again"),
    "zeros": (lambda: bytes(4096), "nothing but zeros", "Download it again"),
    "torrent": (lambda: b"d8:announce3:abc" * 40, "a torrent", "BitTorrent"),
}  # fmt: skip


def refusals(path: Path, folder: Path) -> list[str]:
    """What every function that takes a tar says of a file."""
    calls: list[Callable[[], object]] = [
        lambda: pack_small(path, folder / "pack"),
        lambda: sa1bpack.estimate(path, folder / "estimate", workers=1, **SMALL),
        lambda: sa1bpack.TarDataset(path, index_folder=folder / "index"),
        lambda: list(sa1bpack.IterableTarDataset(path)),
    ]
    if path.suffix == ".tar":  # what it may show is known by name
        calls.append(lambda: sa1bpack.show(path))
    texts = []
    for call in calls:
        try:
            result = call()
            texts += [str(error) for error in result.failed.values()]
        except SourceError as error:
            texts.append(str(error))
    assert len(texts) == len(calls)
    return texts


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_tar_is_called_what_it_is_with_its_remedy(kind, tmp_path):
    make, name, remedy = FILES[kind]
    path = tmp_path / "sa_000000.tar"
    path.write_bytes(make())
    for text in refusals(path, tmp_path):
        assert f"{path}: it is {name}" in text and "where a tar is expected" in text
        assert remedy in text
        assert "md5 with" not in text


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "zeros"])
def test_what_a_gzip_stream_holds_in_place_of_a_tar_is_said(kind, tmp_path):
    make, name, _ = FILES[kind]
    path = tmp_path / "sa_000000.tar"
    path.write_bytes(gzip.compress(make()))
    for text in refusals(path, tmp_path):
        assert f"its gzip stream holds {name}" in text
        assert "md5 with" not in text


def command_in(text: str) -> str:
    """The command of a message, between back quotes."""
    return re.search(r"`([^`]*)`", text)[1]


def run(command: str, folder: Path) -> None:
    subprocess.run(["/bin/sh", "-c", command], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("kind", ["zip", "xz", "lzma", "bz2", "gzip twice", "zstd", "lz4"])
def test_the_command_of_the_message_makes_what_can_be_packed(kind, tmp_path):
    """With the tools that this machine has, on a path with a space."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    path = folder / "sa_000000.tar"
    if kind in ("zstd", "lz4"):
        if shutil.which(kind) is None:
            pytest.skip(f"{kind} is not installed")
        (tmp_path / "plain.tar").write_bytes(plain())
        run(f"{kind} -c plain.tar > '{path}'", tmp_path)
    else:
        data = gzip.compress(gzip.compress(plain())) if kind == "gzip twice" else FILES[kind][0]()
        path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        sa1bpack.TarDataset(path, index_folder=tmp_path)
    command = command_in(str(caught.value))
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]} is not installed")
    run(command, tmp_path)
    made = next(tmp_path / name for name in ("FOLDER", "NEW.tar", "NEW") if name in command)
    assert len(sa1bpack.TarDataset(made, index_folder=tmp_path)) == len(PAIRS) // 2


# ------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    "name",
    ["sa_1.tar.a{}", "sa_1.tar.part-a{}", "sa_1.tar.gz.part{}", "sa_1.tgz.00{}", "sa_1.tar_{}"],
)
def test_every_part_of_a_split_tar_says_how_to_join_them(name, compress, tmp_path):
    """Whatever its bytes begin with, alone or beside the others; joined, they are the tar."""
    whole = gzip.compress(plain()) if compress else plain()
    count = 5
    length = -(-len(whole) // count)
    signs = "abcde" if "a{}" in name else "12345"
    paths = []
    for number, sign in enumerate(signs):
        path = tmp_path / name.format(sign)
        path.write_bytes(whole[number * length : (number + 1) * length])
        paths.append(path)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(paths[0], alone)
    said = "one part of a file that was split: join all parts"
    for path in paths:
        for text in refusals(path, tmp_path / "work"):
            assert said in text, text
    assert "does not begin like a tar" in refusals(paths[0], tmp_path / "work")[0]
    (by_end, *_) = refusals(alone / paths[0].name, tmp_path / "end")
    assert said in by_end
    with pytest.raises(SourceError, match=said):
        open_source_of_folder(tmp_path, paths)
    run(command_in(by_end).replace(str(alone), str(tmp_path)), tmp_path)
    joined = tmp_path / re.match(r".*\.(tar(\.gz)?|tgz)", name)[0]
    assert joined.read_bytes() == whole


def open_source_of_folder(tmp_path: Path, paths: list[Path]) -> None:
    """Pack a folder that has these files."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in paths:
        shutil.copy(path, folder)
    pack_small(folder, tmp_path / "packed")


@pytest.mark.parametrize("name", ["sa_1.tar.gz", "sa_1.tar.old", "sa_1.tar.md5", "sa_1.tar.zst"])
def test_other_endings_are_no_parts(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(plain()[:5000])
    assert "split" not in str(refusals(path, tmp_path)[0])


def test_numbered_tars_that_are_whole_are_packed(tmp_path):
    for number in (1, 2):
        write_tar(tmp_path / f"sa.tar.0{number}", members([number]))
    result = pack_small(str(tmp_path / "sa.tar.*"), tmp_path / "pack")
    assert (result.images, result.complete) == (2, True)


def test_a_download_that_has_not_ended_is_called_so(tmp_path):
    path = tmp_path / "sa_1.tar.crdownload"
    path.write_bytes(gzip.compress(plain())[:-100])
    assert "a download that has not ended: complete it" in refusals(path, tmp_path)[0]


# -------------------------------------------------------------------------- tars and folders


def named(*names: str) -> bytes:
    return tar_bytes([(name, b"some bytes") for name in names])


WITHOUT_PAIRS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a tar of tars": (lambda: named("sa_0.tar", "sa_1.tar"), "it holds archives, such as sa_0.tar"),
    "a tar of zips": (lambda: named("a.zip"), "it holds archives, such as a.zip"),
    "images alone": (
        lambda: tar_bytes(item for item in PAIRS.items() if item[0].endswith(".jpg")),
        "it has images alone, without records",
    ),
    "records alone": (
        lambda: tar_bytes(item for item in PAIRS.items() if item[0].endswith(".json")),
        "it has records alone, without images",
    ),
    "HEIC images": (
        lambda: named("sa_1.heic", "sa_2.heic") [:-1024] + tar_bytes([("sa_1.json", b"{}")]),
        "its images are of a format that is not read, such as sa_1.heic",
    ),
    "PNG images alone": (
        lambda: named("sa_1.png", "sa_2.png"), "it has images alone, without records",
    ),
    "other files": (lambda: named("a.txt"), "it has other files, such as a.txt"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHOUT_PAIRS)
@pytest.mark.parametrize("compress", [True, False])
def test_a_tar_without_pairs_says_what_it_has_instead(kind, compress, tmp_path):
    make, said = WITHOUT_PAIRS[kind]
    path = tmp_path / "sa_1.tar"
    path.write_bytes(gzip.compress(make()) if compress else make())
    result = pack_small(path, tmp_path / "pack")
    (note,) = result.notes
    assert result.images == 0 and "is in sa_1: " in note and said in note
    forecast = sa1bpack.estimate(path, tmp_path / "dry", workers=1, **SMALL)
    assert said in forecast.no_pairs and said in forecast.as_text()
    for make_dataset in (
        lambda: sa1bpack.TarDataset(path, index_folder=tmp_path),
        lambda: next(iter(sa1bpack.IterableTarDataset(path))),
    ):
        with pytest.raises(SourceError, match=re.escape(said)):
            make_dataset()


def test_a_folder_without_tars_and_images_says_what_it_has_instead(tmp_path):
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "README").write_text("about\n")
    with pytest.raises(SourceError, match=r"name tars, or the folder that holds them"):
        open_source(folder)
    (folder / "deep" / "sa_000000.zip").write_bytes(zipped())
    with pytest.raises(SourceError, match=r"sa_000000\.zip is a zip archive: unpack it, `unzip "):
        open_source(folder)
    write_tar(folder / "deep" / "sa_000000.tar", PAIRS)
    with pytest.raises(SourceError, match=r"its tars are in .*data/deep: give that folder"):
        open_source(folder)


@pytest.mark.parametrize("option", ["md5sums", "links"])
def test_a_list_that_is_none_is_called_what_it_is(option, tmp_path):
    tar = write_tar(tmp_path / "sa_1.tar", PAIRS)
    path = tmp_path / "list"
    path.write_bytes(gzip.compress(TEXT.encode()))
    with pytest.raises(SourceError, match="cannot be read: it is a gzip stream"):
        pack_small(tar, tmp_path / "pack", **{option: path})


# ------------------------------------------------------------------------------------- members


UNREAD_IMAGES = {
    "HEIC": lambda: b"\0\0\0\x18ftypheic" + bytes(range(100)),
    "AVIF": lambda: b"\0\0\0\x1cftypavif" + bytes(range(100)),
    "JPEG XL": lambda: b"\xff\x0a" + bytes(range(100)),
}


def test_pairs_that_would_be_rejected_are_said_by_a_dry_run_in_the_words_of_the_run(tmp_path):
    """Pictures of formats that are not read, and records of other layouts under .json."""
    found = members(range(100, 130))
    said = {}
    for number, (kind, make) in enumerate(UNREAD_IMAGES.items(), 100):
        found[f"./sa_{number}.jpg"] = make()
        said[f"sa_{number}.jpg"] = f"it is a{'' if kind[0] == 'J' else 'n'} {kind} image; save it"
    good = json.dumps(record(0)).encode()
    score = str(record(0)["annotations"][0]["predicted_iou"]).encode()
    records = {
        "a list of 3 masks, as SamAutomaticMaskGenerator returns": json.dumps(
            record(0)["annotations"]
        ).encode(),
        "a COCO file of 2 images": b'{"images": [1, 2], "annotations": []}',
        "is NaN, which JSON does not have": good.replace(score, b"NaN"),
        "is -Infinity, which JSON does not have": good.replace(score, b"-Infinity"),
        "the record is a web page": b"<html><body>Sign in</body></html>",
        "the record is UTF-16 text": good.decode().encode("utf-16"),
        "the record is UTF-16 text, ": good.decode().encode("utf-16-le"),
        "the record is a gzip stream": gzip.compress(good),
        f"the JSON is cut short after {len(good) // 2} bytes": good[: len(good) // 2],
        "the record is an empty file": b"",
        "these are polygons": re.sub(rb'\{"size".*?\}', b"[[1, 2, 3, 4, 5, 6]]", good),
    }
    for number, (text, data) in enumerate(records.items(), 110):
        found[f"./sa_{number}.json"] = data
        said[f"sa_{number}.json"] = text
    tar = write_tar(tmp_path / "sa_1.tar", found)
    pack_small(tar, tmp_path / "pack")
    lines = {line["member"]: line["detail"] for line in rejects_of(tmp_path / "pack")}
    assert lines.keys() == said.keys()
    for member, text in said.items():
        assert text in lines[member], member
    forecast = sa1bpack.estimate(tar, tmp_path / "dry", workers=1, **SMALL)
    assert 10 < len(forecast.rejects) <= len(said) and forecast.rejected == len(forecast.rejects)
    for member, why in forecast.rejects.items():
        assert why.endswith(lines[member])
    shown = forecast.as_text()
    assert "members met so far would be rejected:" in shown
    first = next(iter(forecast.rejects))
    assert f"  {first}: {forecast.rejects[first]}" in shown


def test_a_record_with_a_byte_order_mark_is_read_and_exported_without_it(tmp_path):
    found = members([1])
    record_bytes = found["./sa_1.json"]
    pack_small(write_tar(tmp_path / "a.tar", found), tmp_path / "plain")
    found["./sa_1.json"] = b"\xef\xbb\xbf" + record_bytes
    pack_small(write_tar(tmp_path / "b.tar", found), tmp_path / "marked")
    texts = []
    for name in ("plain", "marked"):
        sa1bpack.export_sa1b(tmp_path / name, tmp_path / f"{name}-json")
        texts += [path.read_bytes() for path in (tmp_path / f"{name}-json").rglob("*.json")]
    assert texts[0] == texts[1] and json.loads(texts[1]) == json.loads(record_bytes)


def test_a_record_whose_image_is_not_read_says_which_it_is(tmp_path):
    found = members([1, 2])
    del found["./sa_2.jpg"]
    found["./sa_2.HEIC"] = UNREAD_IMAGES["HEIC"]()
    tar = write_tar(tmp_path / "sa_1.tar", found)
    pack_small(tar, tmp_path / "pack")
    (line,) = rejects_of(tmp_path / "pack")
    assert (line["member"], line["reason"]) == ("sa_2.json", "missing-jpeg")
    assert line["detail"].endswith("but sa_2.HEIC: convert that to JPEG")


# --------------------------------------------------------------------------------- any bytes

BEGINNINGS = st.sampled_from([make()[:20] for make, _, _ in FILES.values()])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.one_of(st.binary(max_size=600), st.tuples(BEGINNINGS, st.binary()).map(b"".join)))
@example(data=b"\xff" * 511 + "é".encode()[:1])
def test_any_bytes_have_a_format_or_none(data):
    known = format_of(data[:HEAD_BYTES])
    if known is not None:
        text = f"{known.name}; {known.remedy_for(Path('a b/$(x).tar'))}"
        assert text.isprintable() and len(text) < 400
        assert "'a b/$(x).tar'" in text or "{file}" not in known.remedy


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.tuples(BEGINNINGS, st.binary(max_size=600), st.booleans()))
def test_any_bytes_in_place_of_a_tar_end_in_a_short_error(tmp_path_factory, data):
    beginning, rest, compress = data
    path = tmp_path_factory.getbasetemp() / "any.tar"
    content = beginning + rest
    path.write_bytes(gzip.compress(content) if compress else content)
    for suffix in ("", ".aa"):
        other = path.with_name(path.name + suffix)
        other.write_bytes(path.read_bytes())
        with pytest.raises(SourceError) as caught:
            sa1bpack.TarDataset(other, index_folder=tmp_path_factory.getbasetemp())
        assert str(caught.value).isprintable() and len(str(caught.value)) < 800


def test_no_signature_is_that_of_a_tar():
    """Neither of any format that tarfile writes, nor with names like signatures."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        for name in ("sa_1.jpg", "PK.jpg", "BMW.jpg", "[1].json", "II*.jpg"):
            path_bytes = tar_bytes([(name, b"x")], format=form)
            assert path_bytes[257:262] == b"ustar"


def test_a_tar_whose_first_name_looks_like_another_format_is_packed(tmp_path):
    """What a tar's header says counts first."""
    for number, name in enumerate(("BMW", "PK\x03\x04", "{a}", "PAR1")):
        listed = [(name, b"x"), *members([1]).items()]
        for compress in (True, False):
            path = tmp_path / f"sa_{number}{compress}.tar"
            write_tar(path, listed, shuffle=None, compress=compress)
            data = tar_bytes(listed)
            path.write_bytes(gzip.compress(data) if compress else data)
            result = pack_small(path, tmp_path / f"p{number}{compress}")
            assert (result.images, result.complete) == (1, True)


def test_pil_knows_the_pictures_that_are_named():
    """So the literal signatures are those of real files, where PIL writes such."""
    for kind in ("PNG", "GIF", "TIFF", "BMP"):
        assert Image.open(io.BytesIO(picture(kind))).format == kind
        assert format_of(picture(kind)[:HEAD_BYTES]).name == f"a {kind} image"

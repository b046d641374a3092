"""Claims about finding sources and detecting their kind."""

import gzip

import pytest
from small_tars import tar_bytes
from system import without_privileges

from sa1bpack.errors import SourceError


@pytest.mark.parametrize(
    ("file", "name"),
    [("sa_1.tar", "sa_1"), ("sa_1.tar.gz", "sa_1"), ("sa_1.TGZ", "sa_1"), ("sa.1", "sa.1")],
)
def test_a_gzip_stream_is_a_gzip_tar_named_without_its_suffix(write, read, file, name):
    path = write(gzip.compress(tar_bytes([("a.txt", b"")])), file)
    assert kinds(read(path)) == [(name, "gzip-tar", path.stat().st_size)]


def kinds(found) -> list[tuple[str, str, int]]:
    """(name, kind, size) of each source."""
    return [(record["name"], record["kind"], record["nbytes"]) for record in found[0]]


def test_a_tar_older_than_ustar_is_recognised_by_its_checksum(write, read):
    header = bytearray(tar_bytes([("sa_1.jpg", b"x")]))
    header[257:265] = bytes(8)
    total = sum(header[:148]) + 256 + sum(header[156:512])
    header[148:156] = b"%06o\0 " % total
    assert kinds(read(write(bytes(header)))) == [("sa_000000", "tar", len(header))]
    header[0] ^= 1
    with pytest.raises(SourceError, match="neither a gzip stream nor a tar header"):
        read(write(bytes(header)))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (bytes(range(1, 200)) * 3, r"begins with b'\\x01\\x02\\x03"),
        (b"\x01", r"begins with b'\\x01'"),
    ],
)
def test_other_files_are_refused_naming_their_first_bytes(write, read, data, found):
    with pytest.raises(SourceError, match=found):
        read(write(data))


def test_a_folder_is_one_source_with_the_size_of_its_members(tmp_path, read):
    folder = tmp_path / "sa_000007"
    (folder / "deep").mkdir(parents=True)
    (folder / "sa_1.jpg").write_bytes(b"12345")
    (folder / "deep" / "sa_1.JSON").write_bytes(b"123")
    (folder / "README").write_bytes(b"not counted")
    assert kinds(read(folder)) == [("sa_000007", "folder", 8)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sa_2.tar.xz", "it is an xz stream, where a tar is expected; decompress it"),
        ("sa_2.tar.aa", "it is one part of a file that was split"),
        ("sa_2.tar.gz.part002", "it is one part of a file that was split"),
    ],
)
def test_a_tar_in_another_form_beside_tars_is_not_passed_over(tmp_path, read, name, said):
    """It would be missing from the pack without a word; one that is there as a tar, too, is not."""
    (tmp_path / "sa_1.tar").write_bytes(tar_bytes([("a.txt", b"")]))
    for other in ("md5sums.txt", "sa_1.tar.md5", "sa_3.tar.ok", "sa_1.tar.xz", ".sa_3.tar.xz"):
        (tmp_path / other).write_bytes(b"")
    assert [source[0] for source in kinds(read(tmp_path))] == ["sa_1"]
    (tmp_path / name).write_bytes(b"\xfd7zXZ\0" + bytes(range(200)))
    with pytest.raises(SourceError, match=rf"^{tmp_path / name}: .*{said}"):
        read(tmp_path)
    whole = name.rpartition(".")[0]
    (tmp_path / whole).write_bytes(tar_bytes([("b.txt", b"")]))
    assert [source[0] for source in kinds(read(tmp_path))] == ["sa_1", "sa_2"]


def test_a_folder_without_images_is_refused_with_a_remedy(tmp_path, read):
    (tmp_path / "sa_1.txt").write_bytes(b"")
    with pytest.raises(SourceError, match=r"no image \(\.jpg, .* name tars, or the folder"):
        read(tmp_path)


def test_a_folder_of_tars_stands_for_its_tars(write, tmp_path, read):
    data = tar_bytes([("sa_1.jpg", b"")])
    (tmp_path / "tars").mkdir()
    for name in ("sa_2.tar", "sa_1.TAR", "sa_3.tar.gz", "notes.txt", ".sa_4.tar"):
        write(data, f"tars/{name}")
    found = kinds(read(tmp_path / "tars", tmp_path / "tars/sa_2.tar"))
    assert found == [(name, "tar", len(data)) for name in ("sa_1", "sa_2", "sa_3")]
    (tmp_path / "tars/plot.png").touch()  # a picture beside them
    (tmp_path / "tars/instances.json").touch()  # annotations of them
    assert kinds(read(tmp_path / "tars")) == found
    (tmp_path / "tars/sa_5.jpg").touch()
    said = r"has 3 tars, such as sa_1.TAR, and 1 file of images, such as sa_5.jpg: .*/tars/\*"
    with pytest.raises(SourceError, match=said):
        read(tmp_path / "tars")


def test_a_pack_is_refused_as_a_source(tmp_path, read):
    """Its own JSON files would all be rejected members, and the source complete without images."""
    (tmp_path / "packed" / "shards").mkdir(parents=True)
    for name in ("manifest.json", "zarr.json"):
        (tmp_path / "packed" / name).touch()
    with pytest.raises(SourceError, match=r"packed: a pack, where .*sa1bpack\.open reads it"):
        read(str(tmp_path / "*"))


def test_globs_and_paths_are_sorted_by_name_and_counted_once(write, tmp_path, read):
    data = tar_bytes([("sa_1.jpg", b"")])
    for name in ("sa_2.tar", "sa_1.tar", "other.txt"):
        write(data, name)
    other_spelling = tmp_path / "." / ".." / tmp_path.name / "sa_2.tar"
    found = kinds(read(str(tmp_path / "sa_*.tar"), tmp_path / "sa_2.tar", other_spelling))
    assert [name for name, _, _ in found] == ["sa_1", "sa_2"]


def test_a_literal_path_with_glob_characters_is_found(write, read):
    path = write(tar_bytes([("sa_1.jpg", b"")]), "sa_[1].tar")
    assert kinds(read(path)) == [("sa_[1]", "tar", path.stat().st_size)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("no_*.tar", r"no_\*\.tar: nothing matches this pattern; check the path"),
        ("no.tar", r"no\.tar: no such file or folder; check the path"),
        ("", "no such file or folder"),
        ("no\0.tar", "no such file or folder"),
        ("a" * 300, "cannot be read: File name too long"),
    ],
)
def test_a_missing_source_is_an_error_that_names_the_path(
    tmp_path, monkeypatch, pattern, message, read
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=message):
        read(pattern)


def test_a_source_in_a_folder_without_permission_is_not_reported_missing(write, tmp_path, read):
    (tmp_path / "locked").mkdir()
    write(tar_bytes([("sa_1.jpg", b"")]), "locked/sa_1.tar")
    (tmp_path / "locked").chmod(0)
    for name in ("sa_1.tar", "*.tar"):
        path = str(tmp_path / "locked" / name)
        with without_privileges(), pytest.raises(SourceError) as error:
            read(path)
        assert str(error.value) == f"{path}: cannot be read: Permission denied"
    (tmp_path / "locked").chmod(0o755)


def test_two_sources_with_the_same_name_are_an_error(write, tmp_path, read):
    data = tar_bytes([("sa_1.jpg", b"")])
    (tmp_path / "b").mkdir()
    write(data, "sa_1.tar")
    write(data, "b/sa_1.tar.gz")
    with pytest.raises(SourceError, match="both called 'sa_1'"):
        read(tmp_path / "sa_1.tar", tmp_path / "b" / "*")

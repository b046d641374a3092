"""Malicious packs: nothing hangs, leads out of the folder, or fills memory."""

import functools
import json
import os
import shutil
from pathlib import Path

import pytest
from edited_packs import edit
from format_files import SUMS, manifest_of
from small_packs import pack_small
from small_tars import SMALL, members, write_tar
from system import peak_growth
from verify_script import script_finds

import sa1bpack
from sa1bpack import FormatError, ReadError, verify

SHARD = "shards/sa_000000-000"
MANIFEST = "manifest.json"
INDEX = "index"
# File → how a reader meets it.
READERS = {
    MANIFEST: sa1bpack.open,
    INDEX: sa1bpack.open,
    SUMS: lambda root: sa1bpack.open(root, verify_checksums=True),
    f"{SHARD}/zarr.json": lambda root: sa1bpack.open(root)[0],
}
FILES = (*READERS, f"{SHARD}/area/zarr.json", f"{SHARD}/{SUMS}")


def file_of(root: Path, name: str) -> Path:
    return root / manifest_of(root)["index"] / "zarr.json" if name == INDEX else root / name


def refusal_of(root: Path, name: str) -> str:
    """What readers say of a file, or a check if they do not need it; the check finds all."""
    text = "\n".join(str(problem) for problem in verify(root, quick=True).problems)
    if name not in READERS:
        return text
    assert text
    with pytest.raises((FormatError, ReadError)) as caught:
        READERS[name](root)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(pack, name):
    path = file_of(pack, name)
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: a folder, a pipe or a device" in refusal_of(pack, name)


def test_a_pipe_in_place_of_rows_is_not_waited_for(pack):
    path = pack / SHARD / "area/c.0"
    path.unlink()
    os.mkfifo(path)
    said = f"{path}: a folder, a pipe or a device"
    assert said in str(verify(pack).problems)
    code, printed = script_finds(pack)
    assert code == 1
    assert said in printed


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_a_terabyte_of_zeros_is_refused_unread(pack, name):
    os.truncate(file_of(pack, name), 1 << 40)
    with pytest.raises((FormatError, ReadError), match="a file of its kind has at most 268435456"):
        READERS[name](pack)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", [b'{"attributes":' * 100_000, b"\xff" * 1000])
def test_nonsense_of_any_depth_is_refused_with_a_short_message(pack, name, text):
    path = file_of(pack, name)
    path.write_bytes(text)
    said = refusal_of(pack, name)
    assert str(path) in said and all(len(line) < 1000 for line in said.splitlines())


def test_attributes_of_any_depth_are_not_descended_into(pack):
    """Those of the packer may be anything; a defect beside them is named all the same."""
    path = pack / SHARD / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["attributes"]["sa1bpack"]["own"] = "@"
    opened = 0
    for depth in (100, *range(800, 1000, 40)):
        text = json.dumps(metadata).replace('"@"', "[" * depth + "]" * depth)
        path.write_text(text)
        try:
            opened += len(sa1bpack.open(pack)[0]["file_name"]) > 0
        except ReadError as error:
            assert "recursion" in str(error) and depth > 800
        path.write_text(text.replace('"node_type": "group"', '"node_type": "array"'))
        with pytest.raises(ReadError, match=r"node_type is 'array'|recursion"):
            sa1bpack.open(pack)[0]
    assert opened


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["shards"][0].update(samples=2**63),
        lambda d: d["shards"][0].update(bytes=10**400),
        lambda d: d["shards"][0].update(masks=-(2**63)),
        lambda d: d.update(samples=10**4000),
        lambda d: d.update(version=[10**4000, 0]),
        lambda d: d.update(version=[[[[[]]]]] * 10_000),
        lambda d: d["layout"].update(image_size=10**4000),
        lambda d: d["layout"].update(fit=["x" * 100_000]),
        lambda d: d["layout"].update(fit=functools.reduce(lambda x, _: [x], range(900), [])),
        lambda d: d["layout"].update({"x" * 100_000: 1}),
        lambda d: d["shards"][0].update(name="x" * 100_000),
        lambda d: d["shards"][0].update(name="\x1b[2J"),
        lambda d: d.update(index="x" * 100_000),
    ],
)
def test_values_of_any_size_are_refused_with_a_short_message(pack, change):
    edit(pack / MANIFEST, change)
    with pytest.raises(FormatError) as caught:
        sa1bpack.open(pack)
    message = str(caught.value)
    assert len(message) < 1000 and message.isprintable()


def test_a_manifest_of_very_many_repeated_shards_is_refused_at_once(pack):
    """Searching all names for each of them took quadratic time."""
    edit(pack / MANIFEST, lambda d: d.update(shards=[d["shards"][0] | {"name": f"s{n // 2}"}
                                          for n in range(40_000)]))  # fmt: skip
    with pytest.raises(FormatError, match="s0 is listed twice") as caught:
        sa1bpack.open(pack)
    assert len(str(caught.value)) < 500


def test_a_page_in_place_of_the_manifest_is_named_as_one(pack):
    """As a download leaves it where one has to log in; nothing has to be repaired."""
    (pack / MANIFEST).write_text("\n<!DOCTYPE html><html><body>Sign in</body></html>")
    with pytest.raises(FormatError, match=r"manifest\.json: a page in HTML.*log in") as caught:
        sa1bpack.open(pack)
    assert "repair" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../elsewhere", "/etc", "a/b", "a\\b", "", "\0", "a\0b", ".tmp-x", "__x", "\ud800",
     "a\nb", "\u202egpj"],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(pack, name):
    edit(pack / MANIFEST, lambda d: d["shards"][0].update(name=name))
    with pytest.raises(FormatError, match=r"cannot be the name of a shard|not JSON"):
        sa1bpack.open(pack)


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a//b", "./a", "a/..", "a\0b", "a\x1bb"])
@pytest.mark.parametrize("where", [".", SHARD])
def test_no_checksum_is_read_outside_the_folder(pack, path, where):
    listed = pack / where / SUMS
    listed.write_text(f"{'0' * 32}  {path}\n{listed.read_text()}")
    report = verify(pack)
    assert any("line 1" in problem.what for problem in report.problems)
    assert all(str(problem).isprintable() for problem in report.problems)


def test_links_within_a_pack_are_read_and_their_targets_checked(pack, tmp_path):
    whole = sa1bpack.open(pack)[0]["bboxes"].tolist()
    for number, name in enumerate((f"{SHARD}/bbox/c.0.0", f"{SHARD}/bbox", SHARD)):
        away = tmp_path / str(number)
        (pack / name).rename(away)
        (pack / name).symlink_to(away)
        copy = shutil.copytree(pack, tmp_path / f"copy-{number}", symlinks=True)
        assert sa1bpack.open(copy)[0]["bboxes"].tolist() == whole
        assert verify(pack).ok
        damaged = next(away.rglob("c.0.0")) if away.is_dir() else away
        damaged.write_bytes(damaged.read_bytes()[::-1])
        assert not verify(pack).ok
        damaged.write_bytes(damaged.read_bytes()[::-1])


def test_a_loop_of_links_is_an_error_not_a_hang(pack):
    shutil.rmtree(pack / SHARD / "area")
    (pack / SHARD / "area").symlink_to(pack / SHARD / "area")
    with pytest.raises(ReadError, match="symbolic links"):
        sa1bpack.open(pack)[0]
    assert not verify(pack).ok


def test_removing_a_linked_shard_removes_the_link_alone(tmp_path):
    """Of a source that a list contradicts, whose shard was published before."""
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(3)))
    pack = tmp_path / "pack"
    away = tmp_path / "away"
    pack_small(tar, pack)
    (pack / SHARD).rename(away)
    (pack / SHARD).symlink_to(away)
    (pack / "shards/.tmp-left").symlink_to(away)
    edit(pack / MANIFEST, lambda manifest: manifest.update(complete=False, sources=[]))
    (tmp_path / "sums").write_text(f"{'0' * 32}  {tar.name}\n")
    result = sa1bpack.pack(tar, pack, workers=1, md5sums=tmp_path / "sums", **SMALL)
    assert not result.complete
    assert not (pack / SHARD).is_symlink() and not (pack / "shards/.tmp-left").is_symlink()
    assert (away / "zarr.json").exists()


def test_a_sparse_pack_of_terabytes_opens_in_bounded_memory(pack):
    """A shard that claims 10^10 masks, with files of that length that are all holes."""
    program = """
import json
from pathlib import Path
from format_files import array_table, array_metadata, layout_in
folder, masks = Path(sys.argv[1]) / "shards/sa_000000-000", 10**10
group = json.loads((folder / "zarr.json").read_text())
own = group["attributes"]["sa1bpack"]
own["masks"] = masks
described = array_table(own["layout"])
for name, array in described.items():
    if array.axis == "mask":
        rows = masks + array.offsets
        about, nbytes = array_metadata((rows, *array.row), array.dtype, array.dims)
        group["consolidated_metadata"]["metadata"][name] = about
        [path] = (folder / name).glob("c.*")
        with path.open("r+b") as file:
            file.truncate(nbytes)
(folder / "zarr.json").write_text(json.dumps(group))
try:
    sa1bpack.open(sys.argv[1])[0]
    raise SystemExit("opened")
except sa1bpack.errors.ReadError as error:
    assert "mask_offset: offsets run from" in str(error), error
"""
    imports = "sa1bpack, sa1bpack.dataset.dataset, format_files"
    assert peak_growth(program, pack, imports=imports) < 64

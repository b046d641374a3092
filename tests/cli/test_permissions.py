"""Errors that come again until the user does something name their own remedy, such as those of
permission: repeating the command cannot help."""

import errno

import pytest
from commands import pack_command
from system import failing, without_privileges

RIGHTS = "permission is missing: check owner and mode (ls -ld); use chmod, chown, or another user"
READ_ONLY = "the file system is read-only: choose another folder, or mount it for writing"


@pytest.mark.parametrize(
    "name, file, work",
    [
        ("show", "x.png", "export.show.draw_samples"),
        ("report", "x.html", "export.report.verification"),
        ("pack", "pack", "packing.run.pack_sources"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    command, tar, packed, tmp_path, monkeypatch, name, file, work
):
    """It is named as the user named it, not by its working name."""
    monkeypatch.setattr(f"sa1bpack.{work}", lambda *_, **__: pytest.fail("work was done"))
    folder = tmp_path / "out"
    folder.mkdir(mode=0o555)
    with without_privileges():
        code, out, error = command(name, tar if name == "pack" else packed, "-o", folder / file)
    assert (code, out) == (4, "")
    what, remedy = error.splitlines()
    assert what.endswith(f"Permission denied: '{folder / file}'") and remedy.endswith(RIGHTS)


@pytest.mark.parametrize(
    "code, remedy, repeat",
    [
        (errno.EACCES, RIGHTS, False),
        (errno.EPERM, RIGHTS, False),
        (errno.EROFS, READ_ONLY, False),
        (errno.EISDIR, "a folder is where a file must be: move it away", False),
        (errno.ENOTDIR, "a file is where a folder must be: move it away", False),
        (errno.ENOSPC, "the disk is full, or has no inodes left (df, df -i): free some", True),
    ],
    ids=errno.errorcode.get,
)
def test_only_errors_that_may_pass_advise_to_repeat(
    command, tar, packed, monkeypatch, code, remedy, repeat
):
    for name in ("os.rename", "Path.rename"):
        monkeypatch.setattr(f"sa1bpack.format.replacing.{name}", failing(code))
    (packed / "rejects.jsonl").write_text("x")
    found, _, error = command(*pack_command(tar, packed))
    assert found == 4 and f"\nsa1bpack: {remedy}\n" in error
    assert ("repeat the same command" in error) == repeat

"""`sa1bpack pack --part`, and `sa1bpack finalize`: messages and exit codes."""

import pytest
from commands import pack_command
from small_tars import contents, members, write_tar

OK = 0
FAILED = 1
USAGE = 2
REFUSED = 3


@pytest.fixture
def part(command, tar, root):
    """part("K/N"): runs a part of a job of two tars."""
    tars = [tar, write_tar(tar.with_name("sa_000001.tar"), members(range(10, 13)))]

    def part(text: str, *more) -> tuple[int, str, str]:
        return command(*pack_command(tars, root, "--part", text, *more))

    part.tars = tars
    return part


def test_a_job_of_more_parts_than_tars(command, part, root, tmp_path):
    for text, says in (("2/3", "3 images"), ("3/3", "this run: no source, there are more parts")):
        code, out, _ = part(text)
        assert code == OK and says in out
        assert out.startswith(f"part {text} of a job, which `sa1bpack finalize` makes one pack\n")
    code, out, error = command("finalize", root)
    assert code == FAILED
    assert error == "sa1bpack: sa_000000 is missing: no shard is published\n"
    assert f"NOT COMPLETE: repeat --part K/3 for K = 1; then sa1bpack finalize {root}\n" in out
    assert part("1/3")[0] == OK
    code, out, error = command("finalize", root)
    assert (code, error) == (OK, "")
    assert out.startswith(f"{root}: 9 images, ")
    whole = tmp_path / "whole"
    assert command(*pack_command(part.tars, whole))[0] == OK
    assert contents(root) == contents(whole)


def test_a_source_that_is_given_up_fails_its_part_and_finalize_names_it(command, part, root):
    data = part.tars[1].read_bytes()
    part.tars[1].write_bytes(data[: len(data) // 2])
    assert part("1/2")[0] == OK
    code, _, error = part("2/2")
    assert code == FAILED and "sa_000001 was given up" in error
    code, out, error = command("finalize", root)
    assert code == FAILED and "repeat --part K/2 for K = 2" in out
    assert f"sa_000001 is missing: given up: {part.tars[1]}" in error


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "1/0", "a/2", "²/3"])
def test_what_is_no_part_is_wrong_usage(part, root, text):
    code, _, error = part(text)
    assert code == USAGE and "--part" in error and not root.exists()
    code, _, error = part("1/2", "--dry-run")
    assert code == USAGE and "exclude one another" in error and not root.exists()


def test_finalize_of_a_damaged_note_names_the_file_and_the_remedy(command, part, root):
    assert part("1/2")[0] == OK
    (note,) = (root / ".parts").glob("source-*.json")
    note.write_text("{")
    code, _, error = command("finalize", root)
    assert code == REFUSED and str(note) in error and "repeat the parts" in error

"""The command line, called within this process, and a small pack to call it with."""

import pytest
from commands import SMALL_FLAGS, without_note
from small_tars import members, write_tar

from sa1bpack.cli.main import main


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "sa_000000.tar", members(range(6), masks=lambda n: n))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "pack"


@pytest.fixture
def command(capsys):
    """command(*arguments): (exit code, stdout, stderr)."""

    def command(*arguments) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
        out, error = capsys.readouterr()
        return code, out, without_note(error)

    return command


@pytest.fixture
def packed(command, tar, root):
    assert command("pack", tar, "--out", root, "--workers", 1, *SMALL_FLAGS)[0] == 0
    return root

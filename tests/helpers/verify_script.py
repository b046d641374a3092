"""scripts/verify_shards.py without a process of its own, for more checks than could be started."""

import contextlib
import io
import sys
from pathlib import Path
from unittest import mock

import verify_shards as script

SCRIPT = Path(script.__file__)


def script_finds(root: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of the script, without a process of its own."""
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["verify_shards.py", str(root), *options]),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            code = script.main()
        except SystemExit as ended:  # of wrong usage
            code = ended.code
    return code, printed.getvalue()

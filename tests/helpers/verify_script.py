"""scripts/verify_shards.py as a module, for more checks than processes could be started for."""

import contextlib
import importlib.util
import io
import sys
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).parents[2] / "scripts" / "verify_shards.py"

_spec = importlib.util.spec_from_file_location("verify_shards", SCRIPT)
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


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

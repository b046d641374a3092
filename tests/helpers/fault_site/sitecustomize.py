"""On the path of worker processes, where Python imports it at its start: loads faults.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import faults

faults.install_from_environment()

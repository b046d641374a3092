"""What `--engine ray` calls; tests that need it are skipped without ray."""

from collections.abc import Callable

import pytest


def on_ray(call: str) -> Callable:
    """The function behind `sa1bpack CALL --engine ray`, for pack, verify, repair and derive."""
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    from sa1bpack.cluster import derive, pack

    return {
        "derive": derive.derive_on_ray,
        "pack": pack.pack_on_ray,
        "repair": pack.repair_on_ray,
        "verify": pack.verify_on_ray,
    }[call]

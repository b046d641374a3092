"""Jobs of compiled kernels, in threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

Job = Callable[[], None]


def run_jobs(jobs: Iterable[Job]) -> None:
    """Run jobs in as many threads as torch may use."""
    jobs = list(jobs)
    threads = min(torch.get_num_threads(), len(jobs))
    if threads < 2:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()

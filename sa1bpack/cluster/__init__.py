"""The commands on a Ray cluster: each task is a part of a job, as `--part K/N` is.

The core does not know of it: what a task calls is a function for a part, and what makes the results
one is what makes those of a job array one.
"""

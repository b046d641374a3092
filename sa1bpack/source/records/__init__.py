"""Readers of records of data sets: SA-1B's, COCO's form, masks of generators, none."""

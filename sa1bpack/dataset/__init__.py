"""Datasets over packs, samples as views, metadata as arrays."""

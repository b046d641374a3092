"""Tars and folders of SA-1B → pairs of (image bytes, JSON bytes) → typed annotations."""

"""Tars and folders of SA-1B → pairs of (JPEG bytes, JSON bytes) → typed annotations."""

"""Measures what a machine can do with a pack: ceilings, loaders, and settings that suit both."""

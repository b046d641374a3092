"""Measurements of a machine with a pack: ceilings, loaders, and settings that suit both."""

"""Masks under the map of their image, and what follows from their runs or cells."""

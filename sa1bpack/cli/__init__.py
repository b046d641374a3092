"""The `sa1bpack` command: one module a subcommand, each a thin layer over a Python call."""

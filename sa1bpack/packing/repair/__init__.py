"""`repair`: replaces what is damaged in a pack, and nothing else."""

"""What does the loader wait for? Counted while an epoch runs, and said in figures and a verdict."""

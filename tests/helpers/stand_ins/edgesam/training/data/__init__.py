raise ImportError("what imports models does not run")

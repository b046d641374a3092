"""How do the bytes of a batch get to their place? Loader, DataLoader, threads, devices."""

"""How do the bytes of a batch get into place? Loader, DataLoader, threads, devices."""

"""Loading of batches: Loader, DataLoader, threads, devices."""

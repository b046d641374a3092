"""Loading of batches: Loader, reader threads, devices."""

"""Models: readers, resolved configs, tensors, the catalogue."""

"""Everything that reads captured tensors: dumps, statistics, reference and log-probability checks."""

"""Extraction: a data set in, checked training data out."""

"""Data sets in object stores: a bounded staging folder on this machine, an uploader, and the objects at a URL.

Only fsspec's interface is used, so any store that it knows will do; what S3 needs beyond that is in `s3.py`.
"""

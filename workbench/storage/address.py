"""URLs of data sets, and the folder of this machine that stages one."""

import hashlib
import re
from pathlib import Path

from workbench.errors import UsageError
from workbench.paths import state_dir

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
"""With two colons fsspec puts one store behind another, which is refused by `checked_url`."""
_SECRETS = re.compile(r"://[^@]*:[^@]*@")
_NOT_IN_A_NAME = re.compile(r"[*?#\[\]{}\s\x00-\x1f]|::")
KEYED = ("s3", "s3a", "gs", "gcs")
"""Stores whose buckets have no user, port or password before them."""
NEVER = {"memory": "it is gone with the process that writes it"}
"""Stores that can be written to, and why they are of no use."""
_SLASHES = re.compile(r"(s3a?|gs|gcs|abfss?|az|file|local|memory|https?|hdfs|sftp|ftp|hf|oss|oci):/*(?![/:])", re.I)
"""The beginning of what is meant for a URL and has not two slashes."""


def is_url(name: str) -> bool:
    """Whether a name is a URL and not a path."""
    return _URL.match(name) is not None or _SLASHES.match(name) is not None


def protocol_of(url: str) -> str:
    """Such as ``s3``."""
    found = _URL.match(url) or _SLASHES.match(url)
    return found[1].lower() if found else "file"


def checked_url(url: str) -> str:
    """The URL in the one way that it is written down in; nothing of a refused one is ever repeated.

    Raises:
        UsageError: it holds credentials, or what a name of an object cannot hold, or has not two slashes.
    """
    if not _URL.match(url) and (slip := _SLASHES.match(url)):
        lead = "/" if slip[1].lower() in ("file", "local") else ""
        meant = checked_url(f"{slip[1]}://{lead}{url[slip.end() :]}")
        raise UsageError(f"{slip[0]} begins neither a URL nor a folder's name", f"did you mean {meant}")
    scheme, _, rest = url.partition("://")
    bucket = rest.partition("/")[0]
    keyed = scheme.lower() in KEYED and (("@" in rest) or (":" in bucket and not bucket.startswith("arn:")))
    if keyed or _SECRETS.search(url):
        raise UsageError(
            "the URL holds credentials, which would be written down",
            "give them by the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
        )
    if _NOT_IN_A_NAME.search(url.replace(bucket, "", 1) if bucket.startswith("arn:") else url) or any(
        part in (".", "..") for part in rest.split("/")
    ):
        raise UsageError(
            "the URL holds a wildcard, a query, a blank, '::' or '..'", "name it plainly: s3://bucket/prefix"
        )
    try:
        url.encode()
    except UnicodeEncodeError:
        raise UsageError("the URL is no text in UTF-8", "name it plainly: s3://bucket/prefix") from None
    lead = "/" if rest.startswith("/") else ""
    parts = [part for part in rest.split("/") if part]
    if not parts:
        raise UsageError(f"{scheme}:// names no bucket", f"{scheme.lower()}://bucket/prefix")
    return f"{scheme.lower()}://{lead}{'/'.join(parts)}"


def writable_url(url: str) -> str:
    """The URL as `checked_url` has it, of a store that data sets can be written to. Nothing is asked of the store.

    Raises:
        UsageError: as `checked_url`; or nothing can be written there, or is not kept.
    """
    url = checked_url(url)
    protocol = protocol_of(url)
    why = NEVER.get(
        protocol, "" if protocol in KEYED or _removes(protocol) else "its objects cannot be replaced or removed"
    )
    if why:
        raise UsageError(f"{protocol} cannot be written to: {why}", "--out takes a folder, or s3://bucket/prefix")
    return url


def _removes(protocol: str) -> bool:
    """Whether fsspec's class can remove objects, which read-only stores cannot; True where it cannot be asked."""
    import fsspec
    from fsspec.asyn import AsyncFileSystem

    try:
        kind = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError):
        return True  # opening the store says what is missing
    bases = (fsspec.AbstractFileSystem, AsyncFileSystem)
    names = ("rm", "rm_file", "_rm", "_rm_file")
    return any(getattr(kind, name, None) not in [getattr(base, name, None) for base in bases] for name in names)


def shard_of(url: str, shard: tuple[int, int]) -> str:
    """Where a shard of the data set goes."""
    number, of = shard
    return url if of == 1 else f"{url}/shard_{number}-of-{of}"


def staging_folder(url: str, parent: str | None = None) -> Path:
    """The folder that stages the data set of this URL: one of its own below `parent`, else below the state folder."""
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    above = Path(parent).expanduser().absolute() if parent is not None else state_dir() / "staging"
    return above / name


def local_folder(name: str) -> Path:
    """The job folder that a path or URL means: for a URL the staging folder of the last job with it on this machine."""
    if not is_url(name):
        return Path(name)
    from workbench.extract.job.files import JobFiles
    from workbench.extract.job.roster import folders

    url = checked_url(name)
    for folder in reversed(folders()):
        try:
            job = JobFiles(Path(folder)).load()
        except UsageError:
            continue
        if job is not None and job.settings.store == url:
            return Path(folder)
    return staging_folder(url)

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


def is_url(name: str) -> bool:
    """Whether a name is a URL and not a path."""
    return _URL.match(name) is not None


def protocol_of(url: str) -> str:
    """Such as ``s3``."""
    found = _URL.match(url)
    return found[1].lower() if found else "file"


def checked_url(url: str) -> str:
    """The URL in the one way that it is written down in; nothing of a refused one is ever repeated.

    Raises:
        UsageError: it holds credentials, or what a name of an object cannot hold.
    """
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

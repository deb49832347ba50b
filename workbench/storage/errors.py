"""What can go wrong with a store, said without any secret."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import CheckFailed, HsbenchError, Missing, ServerError, UsageError
from workbench.server.secrets import blot, secret_values

LONGEST = 240
"""Letters of a library's message that are repeated."""
KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidSecurity"})
"""What S3 answers to keys that it does not know, or no more (its API reference, "Error responses")."""


class StorageError(ServerError):
    """The store did not do what it was asked; trying again later may help."""


class TakenOver(CheckFailed):
    """Another start of the job writes to the same URL, so this one must not go on."""


class Refused(UsageError):
    """The store will not do it, whenever it is asked: no bucket, no right, no credentials."""


@contextlib.contextmanager
def told(url: str, doing: str) -> Iterator[None]:
    """Turn whatever a store's library raises into one line. FileExistsError passes: the caller knows what it means."""
    try:
        yield
    except (HsbenchError, FileExistsError):
        raise
    except Exception as error:
        raise explained(error, url, doing) from None  # the chain of a library's errors may show what it sent


@contextlib.contextmanager
def called(folder: Path, url: str) -> Iterator[None]:
    """Have errors about a folder that stands for a URL name the URL."""
    try:
        yield
    except HsbenchError as error:
        message, step = (text.replace(str(folder), url) for text in (error.message, error.next_step))
        raise type(error)(message, step, error.details) from None


def explained(error: BaseException, url: str, doing: str) -> HsbenchError:
    """The error for the user. What says how to get in decides the next step."""
    name, said = type(error).__name__, one_line(error)
    bucket = "/".join(url.split("/")[:3])
    if isinstance(error, ImportError):
        return Missing(f"the library for {bucket} is missing: {said}", _library(url))
    if "Credential" in name or "NoAuth" in name:
        return Refused(
            f"{doing} {url}: no credentials for it are in the environment ({name})",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role",
        )
    if isinstance(error, PermissionError):
        return Refused(f"{doing} {url} is not allowed: {said}", _right(_code(error)))
    if isinstance(error, FileNotFoundError):
        return Refused(f"there is no {bucket}, or nothing at {url}: {said}", "is the URL right, and AWS_ENDPOINT_URL?")
    return StorageError(f"{doing} {url} failed: {name}: {said}", "is the store up, and reachable from here?")


def _code(error: BaseException) -> str:
    """S3's own word for it, which the library keeps with the error that it had from below."""
    answer = getattr(error.__cause__, "response", None)
    found = answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""
    return str(found)


def _right(code: str) -> str:
    if code in KEYS:
        return f"{code}: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or log in again"
    if code == "RequestTimeTooSkewed":
        return "set this machine's clock"
    return "it needs to list, read, write and delete there"


def _library(url: str) -> str:
    if url.startswith("s3"):
        return "pip install 'hsbench[s3]'"
    return "install the package that it names beside hsbench[s3]"


def one_line(error: BaseException) -> str:
    """A library's message in one line, without secrets of the environment."""
    text = " ".join(str(error).split()) or type(error).__name__
    return blot(text, secret_values(os.environ, ()))[:LONGEST]

"""What S3 needs beyond fsspec's interface: settings of its client, and uploads that were begun and never finished."""

from typing import Any

PART_BYTES = 16 << 20
"""Of a multipart upload, unless 10,000 of them are not enough."""
MOST_PARTS = 10_000
AT_ONCE = 4
"""Parts of one file that are on their way at a time; each is held in memory."""
OPTIONS: dict[str, Any] = {
    # A single request is tried again by botocore (standard mode: back-off, jitter), and where that cannot, as for an
    # answer that breaks off, by s3fs (`S3FileSystem.retries`, 5 times). Nothing here tries a request again.
    "config_kwargs": {
        "retries": {"mode": "standard", "max_attempts": 3},
        "connect_timeout": 10,
        "read_timeout": 60,
    },
    "max_concurrency": AT_ONCE,
}


def part_bytes(size: int) -> int:
    """The part size for a file."""
    return max(PART_BYTES, -(-size // MOST_PARTS))


def exists_already(error: BaseException) -> bool:
    """Whether an error is the answer to `If-None-Match: *` that there is such an object."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None) or {}
    return isinstance(error, FileExistsError) or response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def abort_uploads(fs: Any, root: str) -> int:
    """Abort the multipart uploads below `root` that nobody finished; how many there were."""
    bucket, prefix, _ = fs.split_path(root)
    count = 0
    marks: dict[str, str] = {}
    while True:
        found = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", **marks)
        for upload in found.get("Uploads") or []:
            fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            count += 1
        if not found.get("IsTruncated"):
            return count
        marks = {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

"""What is known of a file before it is sent, to be compared with what the store says of it afterwards."""

import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

BLOCK = 1 << 20


class Sums(NamedTuple):
    """Size and checksums of one file."""

    nbytes: int
    crc32: str
    """Eight hexadecimal digits, as in the index."""
    etags: tuple[str, ...]
    """Entity tags that S3 gives to an object with these bytes."""


def sums_of(path: Path, part: int) -> Sums:
    """Read a file once.

    The entity tag of an object sent whole is its MD5; of one sent in N parts the MD5 of the parts' MD5s one after the
    other, then ``-N`` (Amazon S3 User Guide, "Checking object integrity", on entity tags of multipart uploads). With
    SSE-KMS or SSE-C it is neither, which is why a tag that does not fit is no fault, only no proof.

    Args:
        path: The file.
        part: Bytes of a part, the last one excepted.
    """
    whole, parts, crc, nbytes = hashlib.md5(usedforsecurity=False), [], 0, 0
    with open(path, "rb") as file:
        left, one = part, hashlib.md5(usedforsecurity=False)
        while block := file.read(min(BLOCK, left)):
            nbytes += len(block)
            crc = zlib.crc32(block, crc)
            whole.update(block)
            one.update(block)
            left -= len(block)
            if not left:
                parts.append(one.digest())
                left, one = part, hashlib.md5(usedforsecurity=False)
        if left != part:
            parts.append(one.digest())
    joined = f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
    return Sums(nbytes, f"{crc:08x}", (whole.hexdigest(), joined))

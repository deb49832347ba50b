"""Everything that a bug report needs in one archive, secrets masked.

verdict.json     the diagnosis, in the form of `hsbench doctor --json`
samples.jsonl    the last minute, one sample a line
stacks.txt       where the processes stood
log.txt          the end of the log
process.json     command line, environment and process tree
machine.json     what `hsbench doctor` finds
servers.json     the records of the servers
"""

import io
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.server import log, state
from workbench.server.secrets import MASK, mask_env, mask_flags, mask_text, secret_values
from workbench.supervision import signals
from workbench.supervision.doctor import Finding
from workbench.supervision.records import Sample
from workbench.supervision.target import Target
from workbench.supervision.verdict import Verdict

LOG_LINES = 2000


def write(
    path: Path,
    findings: Sequence[Finding],
    target: Target | None = None,
    samples: Sequence[Sample] = (),
    verdict: Verdict | None = None,
) -> list[str]:
    """Write the archive and return the names in it. Only its owner may read it.

    Raises:
        UsageError: it cannot be written there.
    """
    files = {"machine.json": _json(findings), "servers.json": _json(list(state.all_records()))}
    secrets: tuple[str, ...] = ()
    if target is not None:
        env, argv = signals.environment(target.pid), signals.command_line(target.pid)
        secrets = secret_values(env, argv)
        files["process.json"] = _json({"argv": mask_flags(argv), "env": mask_env(env), "pid": target.pid})
        files["samples.jsonl"] = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
        files["stacks.txt"] = _stacks(samples)
        if target.log is not None:
            files["log.txt"] = "\n".join(log.tail(target.log, LOG_LINES)).encode()
    if verdict is not None:
        files["verdict.json"] = _json(verdict.as_json())
    try:
        _pack(path, {name: _masked(data, secrets) for name, data in files.items()})
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "name another file") from error
    return sorted(files)


def _masked(data: bytes, secrets: Sequence[str]) -> bytes:
    for secret in secrets:
        data = data.replace(secret.encode(), MASK.encode())
    return data


def _pack(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        path.chmod(0o600)
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"hsbench-bundle/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _stacks(samples: Sequence[Sample]) -> bytes:
    lines: list[str] = []
    for sample in samples:
        for stack in sample.stacks:
            lines.append(f"\n{sample.at:.1f} s  {stack.label}, by {stack.source} {stack.note}".rstrip())
            lines += [f"    {frame}" for frame in stack.frames]
    return mask_text("\n".join(lines)).encode()

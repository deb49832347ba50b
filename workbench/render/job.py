"""A job's events as lines."""

from workbench.extract.job.events import Ended, JobEvent, Preflight, Progress, Told
from workbench.extract.job.roster import KnownJob
from workbench.render.text import harmless, plain_table, size


def event_text(event: JobEvent) -> str:
    """One or more lines; empty for a picture, which is shown elsewhere."""
    match event:
        case Preflight():
            return preflight_text(event)
        case Told():
            mark = "" if event.level == "note" else f"{event.level}: "
            return mark + harmless(event.text)
        case Ended():
            return f"{event.state}: {harmless(event.message)}"
        case Progress():
            return ""


def preflight_text(found: Preflight) -> str:
    """The numbers that the run was allowed on."""
    left = found.rows - found.done
    exact = found.looked_at >= left
    spread = "" if exact else f" ± {(found.tokens - found.tokens_low) / max(1.0, found.tokens):.1%}"
    lines = [
        f"{left:,} of {found.rows:,} rows to go, {found.tokens:,.0f} tokens{spread} "
        f"by {found.looked_at:,} rows looked at, the longest {found.longest:,}",
        f"blocks {','.join(map(str, found.after_block))} and final: {found.bytes_per_token:,} B a token, "
        f"{size(found.bytes_needed)} in all; {size(found.free_bytes)} free, "
        f"{size(found.min_free_bytes)} stay free",
        f"dump folder: {size(found.dump_free_bytes)} free, {size(found.high_water_bytes)} may wait there",
    ]
    if found.plain_tok_s is not None:
        lines.append(f"plain prefill of the same rows on this server: {found.plain_tok_s:,.0f} tok/s")
    return "\n".join(lines)


def jobs_text(jobs: list[KnownJob]) -> str:
    """A table of jobs."""
    if not jobs:
        return "no job was started here"
    rows = [
        [one.state, f"{one.written:,}/{one.rows:,}", str(one.pid or "-"), harmless(one.store or one.folder)]
        for one in jobs
    ]
    return plain_table("", ["state", "samples", "process", "folder"], rows, left=4)

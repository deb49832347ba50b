"""A plan as text."""

from workbench.extract.plan import Cost, Plan, Volume
from workbench.render.text import duration, plain_table, short, size

GIB = 1 << 30


def plan_text(plan: Plan) -> str:
    """What there is to make, then a line for each number of servers."""
    lines = [_volume(plan.volume, plan.nbytes), _rates(plan)]
    if not plan.costs:
        return "\n".join([lines[0], "no time without a rate: --tok-s X, or --like DIR of a run or a bench"])
    header = [
        "servers",
        "GPUs",
        "tok/s",
        "writes",
        "work",
        "start-up and shards",
        "in all",
        "bound",
        "server h",
        "eff.",
    ]
    if not plan.gpus_per_server:
        header.remove("GPUs")
    rows = [_row(cost, plan.gpus_per_server) for cost in plan.costs]
    lines.append(plain_table("", header, rows, left=0))
    if said := _shards(plan):
        lines.append(said)
    if plan.enough_servers is not None:
        lines.append(f"the shared storage is the bound from {plan.enough_servers:,.1f} servers at work on")
    return "\n".join(lines)


def _volume(volume: Volume, nbytes: float) -> str:
    if volume.looked_at is None:
        how = "" if volume.rows is None else f" in {volume.rows:,} rows"
    elif volume.looked_at == volume.rows:
        how = f" in {volume.rows:,} rows, all counted"
    else:
        spread = (volume.tokens - (volume.tokens_low or 0.0)) / volume.tokens
        how = f" ± {spread:.1%} in {volume.rows:,} rows, by {volume.looked_at:,} of them"
    return (
        f"{short(volume.tokens, ' ')} tokens{how}, {volume.bytes_per_token:,} B a token: "
        f"{size(nbytes)} ({nbytes / GIB:,.1f} GiB)"
    )


def _rates(plan: Plan) -> str:
    rates, over = plan.rates, plan.overheads
    parts = [
        f"{rates.tok_s:,.0f} tok/s a server" if rates.tok_s is not None else "",
        f"disk {size(rates.disk_bytes_s)}/s a node" if rates.disk_bytes_s is not None else "",
        f"network {size(rates.net_bytes_s)}/s a node" if rates.net_bytes_s is not None else "",
        f"shared storage {size(rates.shared_bytes_s)}/s" if rates.shared_bytes_s is not None else "",
        f"start-up {duration(over.start_s)}, {duration(over.shard_s)} a shard, {over.shards_a_server} shards a server",
    ]
    return "; ".join(part for part in parts if part)


def _shards(plan: Plan) -> str:
    """From how many servers on there are fewer shards than asked for; empty when there are rows enough."""
    wanted, rows = plan.overheads.shards_a_server, plan.volume.rows
    fewer = [cost.servers for cost in plan.costs if cost.shards < cost.servers * wanted]
    if rows is None or not fewer:
        return ""
    first = f"{fewer[0]:,} server{'s' if fewer[0] > 1 else ''}"
    return f"a shard has a row at least: {rows:,} shards at most, fewer than {wanted} a server from {first} on"


def _row(cost: Cost, gpus: int) -> list[str]:
    return [
        f"{cost.servers:,}",
        *([f"{cost.servers * gpus:,}"] if gpus else []),
        short(cost.tok_s),
        f"{size(cost.nbytes_s)}/s",
        duration(cost.work_s),
        duration(cost.fixed_s),
        duration(cost.total_s),
        cost.bound,
        f"{cost.server_hours:,.1f}",
        f"{cost.efficiency:.0%}",
    ]

"""How true the load generator's figures are, against a server with a known schedule, and how much it can take.

    python bench/client_accuracy.py [--api native] [--concurrency 1 64 256] [--repeat 3] [--rates 25000 50000 100000]

First table: medians of TTFT, ITL and TPOT, and tok/s, as ratios to the schedule, which is arithmetic, and in the second
line to what the server did by its own clock, since timers fire late; `late` is by how much, at most. Second table: 64
streams whose tokens come at a total rate, each token an event of its own; the share of that rate which the client took,
its processor time a token, and whether it calls itself the limit. Server and client share the machine. Repetitions are
shown one by one.
"""

import argparse
from typing import get_args

from bench.load.known_server import KnownServer, Schedule
from bench.load.metrics import Metrics, metrics
from bench.load.selftest import offer
from bench.load.spec import Api

TTFT_S, ITL_S, TOKENS = 2.0, 0.02, 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--api", choices=get_args(Api), default="native")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 64, 256])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="*", default=[25_000, 50_000, 75_000, 100_000])
    options = parser.parse_args()
    _accuracy(options.api, options.concurrency, options.repeat)
    _ceiling(options.api, options.rates)


def _accuracy(api: Api, concurrency: list[int], repeat: int) -> None:
    schedule = Schedule(ttft=TTFT_S, itl=ITL_S, spin=0.002)
    print(f"ratios: TTFT {TTFT_S} s, ITL {ITL_S} s, {TOKENS} tokens, all requests at once")
    print(f"{'in flight':>9} {'to':<9}{'TTFT':>9}{'ITL':>9}{'TPOT':>9}{'tok/s':>9}", end="")
    print(f"{'late, ms':>10}{'lag p99, ms':>13}{'CPU':>7}  limited")
    with KnownServer(schedule) as server:
        for streams in [one for one in concurrency for _ in range(repeat)]:
            loaded, account = offer(server.url, api, streams, TOKENS), server.account()
            found, true = metrics(loaded.records, streams), metrics(account.answers[-streams:], streams)
            print(f"{streams:>9} schedule {_ratios(_figures(found), (TTFT_S, ITL_S, ITL_S, streams / ITL_S))}", end="")
            print(f"{account.late_largest * 1000:>10.2f}{loaded.cost.lag_p99 * 1000:>13.2f}", end="")
            print(f"{loaded.cost.cpu_share:>7.0%}  {'; '.join(loaded.cost.limited) or 'no'}")
            print(f"{'':>9} server   {_ratios(_figures(found), _figures(true))}", flush=True)


def _figures(found: Metrics) -> tuple[float, ...]:
    assert found.ttft
    assert found.itl
    assert found.tpot
    assert found.batch_tok_s
    assert not found.failed
    return found.ttft.p50, found.itl.p50, found.tpot.p50, found.batch_tok_s


def _ratios(measured: tuple[float, ...], truth: tuple[float, ...]) -> str:
    return "".join(f"{one / other:>9.4f}" for one, other in zip(measured, truth, strict=True))


def _ceiling(api: Api, rates: list[int]) -> None:
    streams = 64
    print(f"\n{streams} streams, tokens at a total rate")
    print(
        f"{'offered tok/s':>13}{'taken':>8}{'us a token':>12}{'CPU':>7}{'lag p99, ms':>13}{'late p99, ms':>14}  limited"
    )
    for rate in rates:
        with KnownServer(Schedule(ttft=0.2, itl=streams / rate)) as server:
            loaded = offer(server.url, api, streams, max(2, round(1.5 * rate / streams)))
            found, late, cost = metrics(loaded.records, streams), server.account(), loaded.cost
        assert found.batch_tok_s
        assert not found.failed
        print(f"{rate:>13,}{found.batch_tok_s / rate:>8.3f}{cost.cpu_us_per_token or 0:>12.2f}", end="")
        print(f"{cost.cpu_share:>7.0%}{cost.lag_p99 * 1000:>13.2f}{late.late_p99 * 1000:>14.2f}", end="")
        print(f"  {'; '.join(cost.limited) or 'no'}", flush=True)


if __name__ == "__main__":
    main()

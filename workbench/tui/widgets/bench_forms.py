"""The forms of the Bench mode: the options of `hsbench bench` and of `hsbench bench sweep`."""

from collections.abc import Sequence

from bench.load.spec import APIS
from bench.sweep.variants import SETS
from workbench.tui.modals.form import CommandForm, Field


def run_form(servers: Sequence[str]) -> CommandForm:
    """Put load on a server; `servers` are the names of those that were started here."""
    name = servers[0] if len(servers) == 1 else ""
    return CommandForm(
        "Put load on a server",
        ("bench",),
        (
            Field("server", "--name", name, "one of ours; the only one if left out", suggestions=tuple(servers)),
            Field("url", "--url", hint="instead of a server of ours, such as http://127.0.0.1:30000"),
            Field("api", "--api", choices=("", *APIS)),
            Field("model", "--model", hint="that OpenAI requests name; the server's first"),
            Field("input length", "--input-len", "128", "tokens, or several: 128,1024"),
            Field("output length", "--output-len", "128", "tokens, or several"),
            Field("concurrency", "--concurrency", "1,8", "requests kept in flight, or several"),
            Field("rate", "--rate", hint="arrivals a second instead of a concurrency"),
            Field("requests", "--requests", hint="for each workload; 4 x concurrency, at least 10"),
            Field("seconds", "--seconds", hint="send for so long instead"),
            Field("data", "--data", hint="JSONL or ShareGPT file instead of an input length"),
            Field("limits", "--limits", hint="of the goodput, such as ttft=0.5,itl=0.05"),
            Field("seed", "--seed", hint="for the same prompts again"),
            Field("respect EOS", "--respect-eos", switch=True),
            Field("no warm-up", "--no-warm-up", switch=True),
            Field("timeout", "--timeout", hint="seconds without a byte; 600"),
            Field("API key's variable", "--api-key-env", hint="name of the variable that holds the key"),
        ),
    )


def sweep_form() -> CommandForm:
    """Start a server under each variant and decide."""
    return CommandForm(
        "Sweep: a server under each variant",
        ("bench", "sweep"),
        (
            Field("model", "--model", hint="path or demo; or a profile below", suggestions=("demo",)),
            Field("profile", "--profile", hint="FILE.toml"),
            Field("variants", "--variants", hint=f"{', '.join(SETS)}, or FILE.toml", suggestions=SETS),
            Field("axes", "--axes", hint="nccl,communicator,flags", suggestions=("flags", "nccl", "communicator")),
            Field("blocks", "--blocks", "3", "starts of each variant"),
            Field("budget", "--budget", hint="minutes; it can be resumed"),
            Field("unsafe", "--unsafe", switch=True),
            Field("device", "--device", choices=("", "auto", "cpu", "cuda")),
            Field("concurrency", "--concurrency", hint="1"),
            Field("input length", "--input-len", hint="of the decode load; 32"),
            Field("output length", "--output-len", hint="of the decode load; 128"),
            Field("requests", "--requests", hint="of each load; 8, or 4 x concurrency"),
            Field("prefill length", "--prefill-len", hint="of the prefill load; 1024"),
            Field("no confirmation", "--no-confirm", switch=True),
            Field("NCCL's log", "--nccl-debug", switch=True),
            Field("one start within", "--timeout", hint="seconds; 900"),
            Field("folder", "--out", hint="by what is swept, so that the same command goes on"),
            Field("SGLang's flags", rest=True, hint="--tp-size 2 ..."),
        ),
    )

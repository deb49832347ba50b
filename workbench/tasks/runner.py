"""The process of a task: `python -m workbench.tasks.runner FILE ARGUMENTS…` runs a command, then writes its code."""

import signal
import sys
from pathlib import Path

from workbench import cli


def main(arguments: list[str]) -> int:
    """Run the command line; its exit code goes into the file named first."""
    # Whoever starts a task may ignore Ctrl-C, and a child inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file, *command = arguments
    code = cli.run(command)
    building = Path(f"{file}.tmp")
    building.write_text(str(code))
    building.replace(file)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

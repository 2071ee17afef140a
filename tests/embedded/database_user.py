"""A process that uses the embedded server until its stdin is closed. Tests kill it.

It gets its options as JSON and prints one line of JSON: the URL, or the error.
"""

import json
import os
import signal
import sys
from pathlib import Path

from leasehold.domain.errors import EmbeddedDatabaseError
from leasehold.embedded.binaries import PostgresBinaries
from leasehold.embedded.server import EmbeddedPostgres


def say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def fork_children() -> None:
    """Fork one child that exits normally, and one that lives until its group is killed."""
    exits = os.fork()
    if not exits:
        sys.exit()
    os.waitpid(exits, 0)
    if not os.fork():
        for pipe in (0, 1):
            os.close(pipe)
        signal.pause()


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
    order = json.loads(sys.argv[1])
    if order["ignores_ctrl_c"]:
        signal.signal(signal.SIGINT, lambda *_: None)
    binaries = PostgresBinaries(
        Path(order["bin_dir"]), order["version"], "wheel" if order["wheel"] else "system"
    )
    data_dir = Path(order["data_dir"])
    postgres = EmbeddedPostgres(data_dir, binaries=binaries, settings=order["settings"])
    try:
        postgres.start()
    except EmbeddedDatabaseError as error:
        say({"error": str(error)})
        return
    if order["forks_a_child"]:
        fork_children()
    say({"url": postgres.url, "user": os.geteuid()})
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Takes the place of the dashboard's agent on further nodes of Ray, which no test asks there.

Ray's own imports for a second of processor time. A raylet starts this with the agent's arguments,
and reads in three files that the agent has no ports.
"""

from __future__ import annotations

import os
import sys
import time

_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")


def main() -> None:
    parent = os.getppid()
    given = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
    for name in _PORTS:
        path = os.path.join(given["--session-dir"], f"{name}_{given['--node-id']}")
        with open(f"{path}.new", "w") as file:
            file.write("-1")
        os.rename(file.name, path)
    while os.getppid() == parent:
        time.sleep(1)


if __name__ == "__main__":
    main()

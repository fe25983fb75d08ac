"""An engine process that a certain prefix kills, as a bug of native code at a token would.

python FILE -m deploy.batches.engine_process

DEADLY is the prefix, as JSON; DEATHS a file that gets the number of requests in each deadly call.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from deploy.batches.engine_process import main
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.models.target import CausalTarget

DEADLY, DEATHS = "TESTS_DEADLY_PREFIX", "TESTS_DEATHS"

verify = CausalTarget.verify


async def deadly(self: CausalTarget, requests: Sequence[VerifyRequest]) -> list[Verdict]:
    prefix = json.loads(os.environ[DEADLY])
    if any([*request.prefix[: len(prefix)]] == prefix for request in requests):
        with Path(os.environ[DEATHS]).open("a") as deaths:
            print(len(requests), file=deaths)
        os.kill(os.getpid(), signal.SIGKILL)
    return await verify(self, requests)


if __name__ == "__main__":
    CausalTarget.verify = deadly  # type: ignore[method-assign]
    main()

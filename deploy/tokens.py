"""The token of a deployment, which every call to its roles carries; from a file or a variable."""

from __future__ import annotations

import os
from pathlib import Path

from actors.settings import PipelineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.rpc import security

TOKEN_VARIABLE = "DIFFUSPEC_TOKEN"


def given_token(config: PipelineConfig, file: Path | None = None) -> str | None:
    """Return the token in a file, else in rpc.token_file, else in the variable, else None.

    Raises ConfigError for a file that cannot be read or is empty.
    """
    path = file or config.rpc.token_file
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    return security.read_token(path)


def read_token(config: PipelineConfig, file: Path | None = None) -> str:
    """Return the token as `given_token` does. Raises ConfigError if none is given."""
    token = given_token(config, file)
    if token is None:
        raise ConfigError(
            f"no token: set {TOKEN_VARIABLE}, or give --token-file or rpc.token_file, the same for "
            "all roles of a deployment"
        )
    return token

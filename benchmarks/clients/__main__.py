"""Entry point of `python -m benchmarks.clients`."""

from benchmarks.clients import app

if __name__ == "__main__":
    app()

"""Runs one replica of the embedded engine: llama.cpp's HTTP server inside a Python package.

Run as ``python -m holdfast.launchers.llamacpp --model FILE --port PORT``. The engine writes its
load phases to stderr itself. Its defaults are those of a machine with one user; these are for
several replicas that share one machine:

* One thread. Two threads of several replicas on the same cores wait for each other at every layer:
  70 tokens a second became 3.
* Small batches. While a part of a prompt is read, the streams of the other slots stand still: for
  8 s with a batch of 512 and a prompt of 300 tokens, for half a second with a batch of 16, which
  reads the prompt a tenth slower.
* No prompt cache in memory beyond the slots' own; its default is 8 GiB.

SIGTERM ends the process at once. The engine's own shutdown waits for requests in flight, for longer
than a stop may take, and control drains a replica before it stops it. The signal must be blocked
before the import, or the engine's threads take it and die in the middle of things. A signal that
comes while the weights are loaded waits until they are: the engine lets no Python run then.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_SLOTS: Final = 2
_CONTEXT_PER_SLOT: Final = 2048  # prompt and answer of one request; 47 MB for a model of 135M
_BATCH: Final = 16  # tokens; above says why
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line that ``engines.launch_command`` builds; 0 means the default."""
    parser = argparse.ArgumentParser(prog="holdfast.launchers.llamacpp")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--alias", default="", help="the name it is served as")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=0, help="requests at a time")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--context", type=int, default=0, help="tokens per slot")
    parser.add_argument("--batch", type=int, default=0, help="tokens of a prompt read at a time")
    parser.add_argument("--embeddings", action="store_true", help="serve vectors, not text")
    return parser.parse_args(arguments)


def settings(options: argparse.Namespace, params: Any) -> Any:
    """Build the engine's parameters from the parsed arguments."""
    slots = options.slots or _SLOTS
    threads = options.threads or 1
    params.model.path = options.model
    params.model_alias = {options.alias or Path(options.model).stem}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = slots
    params.n_ctx = slots * (options.context or _CONTEXT_PER_SLOT)
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = options.batch or _BATCH
    params.cache_ram_mib = 0
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.embedding = options.embeddings
    params.ui = False
    return params


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal ends the process; returns only if the engine could not start."""
    options = parse(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # before the import: see above
    if not Path(options.model).is_file():
        return _failed(f"there is no file {options.model}")
    if problem := _cannot_listen(options.host, options.port):
        return _failed(f"couldn't bind {options.host}:{options.port} ({problem})")
    try:
        import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415 see above
    except ImportError as error:
        return _failed(f"the engine cannot be imported ({error}); install the package xllamacpp")
    try:
        server = xllamacpp.Server(settings(options, xllamacpp.CommonParams()))
    except RuntimeError as error:
        return _failed(f"the engine did not start ({error}); its own lines above say why")
    signal.sigwait(_ENDING)
    sys.stderr.write(f"asked to end: leaving {server.listening_address}\n")
    sys.stderr.flush()
    os._exit(0)


def _cannot_listen(host: str, port: int) -> str:
    """Tried before the weights are loaded; the engine's own line about it is lost as it ends."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _failed(reason: str) -> int:
    sys.stderr.write(f"failed to load model: {reason}\n")
    sys.stderr.flush()
    return 1


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # threads of a half-started engine would hold an ordinary exit up

__all__ = ["main", "parse", "settings"]

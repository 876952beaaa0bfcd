"""A real Triton server with one small model, y = 2x + 1, and switches for what can go wrong.

Run by ``test_pytriton.py`` as the command of launched replicas. A switch is an empty file in the
folder of switches: ``hold`` (the server is up and has no model), ``offset-PORT`` (the model of the
server on that port answers wrongly), ``fail-PORT`` (it fails at inputs that begin with 13, and at
no canary). The page of statistics is open to those who have the token, which is told by an
environment variable.

SIGTERM ends it in an orderly way: else it would leave shared memory and a copy of the server.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

UNLUCKY = 13
OFFSET = np.float32(0.5)  # small beside the answers, large beside the tolerance


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    parser.add_argument("--switches", type=Path, required=True)
    given = parser.parse_args()
    wrong = given.switches / f"offset-{given.port}"
    failing = given.switches / f"fail-{given.port}"

    @batch
    def affine(x):
        if x[0][0] == UNLUCKY and failing.exists():
            raise RuntimeError("told to fail")
        y = np.float32(2) * x + np.float32(1)
        return {"y": y + OFFSET if wrong.exists() else y}

    config = TritonConfig(
        http_address=given.host,
        http_port=given.port,
        grpc_address=given.host,
        grpc_port=given.grpc_port,
        metrics_port=given.metrics_port,
        exit_timeout_secs=5,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    vector = {"dtype": np.float32, "shape": (-1,)}
    security = TritonSecurityConfig(access_token=os.environ["STATISTICS_TOKEN"])
    with Triton(config=config, security_config=security) as triton:
        triton.run()
        while (given.switches / "hold").exists():
            time.sleep(0.1)
        triton.bind(
            model_name=given.model,
            infer_func=affine,
            inputs=[Tensor(name="x", **vector)],
            outputs=[Tensor(name="y", **vector)],
            config=ModelConfig(max_batch_size=8),
        )
        triton.serve()


if __name__ == "__main__":
    main()

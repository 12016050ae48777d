"""Train by Ray Train: `python train.py WORKERS simcse --out DIR …`, with the options of `isosphere train`.

Each worker has a GPU if the cluster has GPUs, or else a CPU. All nodes share the folders of the run and of the bundle.
"""

import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(config: dict[str, list[str]]) -> None:
    """Take part in the run as one worker. After the loss of a worker, all resume from the last checkpoint."""
    from training.checkpoints.record import has_run
    from training.cli.options import parse
    from training.cli.train import resolve, train

    options = parse(["train", *config["arguments"]])
    options.resume = has_run(Path(resolve(options).run))
    train(options)


if __name__ == "__main__":
    workers, *arguments = sys.argv[1:]
    ray.init()
    TorchTrainer(
        work,
        train_loop_config={"arguments": arguments},
        scaling_config=ScalingConfig(num_workers=int(workers), use_gpu="GPU" in ray.cluster_resources()),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=10)),
    ).fit()

"""Ray Serve deployment of the server, and the command `isosphere serve --on ray`."""

from __future__ import annotations

import sys
from typing import Any

from models.cluster import connected, smallest_node
from models.errors import Failed, Refused, first_line
from serving.commands.on_ray.autoscaling import QUEUED_TOKENS, by_queued_tokens
from serving.commands.server import BindError, check_exposure
from serving.settings import Settings

NAME = "isosphere"
MAX_ONGOING = 1000
"""Maximum number of concurrent requests of a replica. The replica's own queue limits the tokens of these requests. If
the queue is full, the replica answers 429."""
MAX_WAITING = 1000
"""Maximum number of requests that wait at a proxy for a replica. The proxy answers further requests with 429."""
RETRY_SECONDS = 2


def application(options: dict[str, Any]) -> Any:
    """Return the Ray Serve application for the options of `isosphere serve`.

    The keys of `options` are the names of settings. A configuration file of Ray Serve gives this function as
    `import_path`, and the options as `args`.

    The encoders are opened later, by the replicas.

    Raises:
        ValidationError: an option is unknown, or its value is not valid.
    """
    return _application(Settings(**options))


def _application(settings: Settings) -> Any:
    from ray import serve
    from ray.serve.metrics import Gauge

    from serving.commands.on_ray.replica import build

    threads = settings.threads or smallest_node()
    settings = settings.model_copy(update={"threads": threads})

    def app() -> Any:
        return build(settings)

    @serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": threads, "num_gpus": int(settings.device == "cuda")},
        max_ongoing_requests=MAX_ONGOING,
        max_queued_requests=MAX_WAITING,
        backpressure_config={"status_code": 429, "retry_after_s": RETRY_SECONDS},
        graceful_shutdown_timeout_s=settings.drain_seconds + 5,
        autoscaling_config={
            "min_replicas": settings.replicas,
            "max_replicas": max(settings.replicas, settings.max_replicas or 0),
            "policy": {"policy_function": f"{by_queued_tokens.__module__}:{by_queued_tokens.__name__}"},
        },
    )
    @serve.ingress(app)
    class Replica:
        """Class of the Ray Serve deployment. Ray Serve calls its methods."""

        app: Any

        async def reconfigure(self, user_config: Any) -> None:
            await self.app.reconfigure(user_config)

        def __init__(self) -> None:
            self._gauges: dict[str, Gauge] = {}

        async def check_health(self) -> None:
            """Raise an error if the replica can't answer requests.

            Ray Serve calls this method every few seconds. The method is therefore also used to copy the metrics to Ray.
            """
            self._copy_metrics()
            await self.app.check_health()

        def _copy_metrics(self) -> None:
            """Copy the metrics to Ray. Ray adds labels for the replica, and puts `ray_` before each name.

            Counters and histogram buckets become gauges. Prometheus's functions for counters and histograms also work
            on these gauges.
            """
            for family in self.app.service.metrics.registry.collect():
                for name, labels, value, *_ in family.samples:
                    if name not in self._gauges:
                        keys: Any = tuple(labels)
                        self._gauges[name] = Gauge(name, family.documentation, tag_keys=keys)
                    self._gauges[name].set(value, tags=dict(labels))

        def record_autoscaling_stats(self) -> dict[str, int]:
            """Return the number of queued tokens, from which `by_queued_tokens` computes the number of replicas."""
            return {QUEUED_TOKENS: sum(one.batcher.queued_tokens for one in self.app.service.encoders.loaded)}

    return Replica.bind()  # type: ignore[attr-defined]


def serve(settings: Settings) -> int:
    """Deploy the replicas, or update replicas that are already deployed. Return the exit status.

    If this process started Ray, serve until Ctrl-C. On a cluster that was already running, return when the replicas are
    deployed.
    """
    try:
        check_exposure(settings, "127.0.0.1" if settings.host == "localhost" else settings.host)
        with connected(settings.ray_address) as own:
            from ray import serve as ray_serve

            ray_serve.start(http_options={"host": settings.host, "port": settings.port, "location": "EveryNode"})
            try:
                ray_serve.run(_application(settings), name=NAME, route_prefix="/", blocking=own)
            except RuntimeError as error:
                raise Refused(f"the replicas did not start: {first_line(error)}") from error
    except (Refused, Failed, BindError) as error:
        print(f"isosphere: {error}", file=sys.stderr)
        return 2
    return 0

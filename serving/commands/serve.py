"""Commands `isosphere serve`, which runs the server, and `isosphere openapi`, which prints the OpenAPI document."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import sys
from concurrent.futures import Future

import uvloop

from models.errors import Failed, Refused
from serving.app import TracingError, routes
from serving.commands import demo
from serving.commands.loading import Opened
from serving.commands.server import BindError, Server, bind
from serving.commands.starting import opened_service
from serving.corpora.backend import is_stale
from serving.corpora.ports import StoreError
from serving.inference.engine import EngineError
from serving.operations import logs
from serving.operations.keys import KeysError
from serving.service import Service
from serving.settings import Settings

log = logging.getLogger("serving")
THINGS_TO_TRY = """\
Isosphere is ready on {address}   (page: {address}/  API: {address}/docs)  Try:

curl -s {address}/embed{key} -H 'content-type: application/json' -d '{{"inputs": "A sentence to embed."}}'
curl -s {address}/similarity{key} -H 'content-type: application/json' -d \
'{{"inputs": {{"source_sentence": "A cat sits outside.", "sentences": ["A feline is outdoors.", "Taxes rose."]}}}}'"""
SEARCH_TO_TRY = """\
curl -s {address}/corpora/{corpus}/search{key} -H 'content-type: application/json' -d \
'{{"query": "run a coroutine with a time limit", "k": 3}}'"""
KEY = ' -H "authorization: Bearer $KEY"'
KEY_NEEDED = "The server requires a key. Run export KEY=... first. isosphere keys add NAME creates a key.\n"
SWITCH_SECONDS = 0.0005
"""Time slice of a thread that runs Python code, in seconds. With Python's default of 5 ms, a filter of one caller would
delay each step of other searches by several times 5 ms."""
LOOK_SECONDS = 0.2
"""Seconds between two checks whether a corpus has documents."""


def serve(opening: Future[Opened]) -> int:
    """Serve the bundles that `opening` opens, until a signal stops the server. Return the exit status.

    If an option, a bundle, the data folder, the key file or the address can't be used, the status is 2. If an encoder
    could not be exported to a bundle, for example because the disk is full, or if Milvus can't be reached, the status
    is 1. In both cases, stderr has one line with the reason.
    """
    try:
        settings, models = opening.result()
        listening = bind(settings)
        service = opened_service(settings, models, None if settings.no_demo else demo.prepare)
        server = Server(service)
    except (Refused, EngineError, BindError, KeysError, StoreError, TracingError, Failed) as error:
        print(f"isosphere: {error}", file=sys.stderr)
        return 1 if isinstance(error, Failed) else 2
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # otherwise each full garbage collection would scan all modules, and all requests would wait
    gc.enable()
    uvloop.run(_serve(server, service, listening, settings))
    return 0


async def _serve(server: Server, service: Service, listening: list[socket.socket], settings: Settings) -> None:
    address = f"http://{_reachable(settings.host)}:{listening[0].getsockname()[1]}"
    names = " and ".join(served.name for served in service.encoders.served)
    log.info("listening on %s, loading %s (engine %s)", address, names, settings.engine)
    asyncio.get_running_loop().set_exception_handler(logs.loop_failed)
    announcing = asyncio.create_task(_announce(service, address))
    await server.serve(sockets=listening)
    announcing.cancel()
    log.info("stopped")


def _reachable(host: str) -> str:
    """Return the host for use in a URL, with brackets around an IPv6 address.

    For localhost or a wildcard address such as 0.0.0.0, return the loopback address.
    """
    host = {"0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


async def _announce(service: Service, address: str) -> None:
    """Print example commands when the service is ready.

    Warn of corpora whose encoder is not served. Fill the demo corpus, unless `--no-demo` is set. As soon as a corpus is
    searchable, print an example search.
    """
    await service.loaded.wait()
    if service.health.state != "ready":
        return
    key = KEY if service.settings.api_keys_file else ""
    print((KEY_NEEDED if key else "") + THINGS_TO_TRY.format(address=address, key=key), flush=True)
    _warn_of_stale_corpora(service)
    async with asyncio.TaskGroup() as group:
        filling = None if service.settings.no_demo else group.create_task(demo.fill(service))
        while not (names := _searchable(service)) and filling and not filling.done():
            await asyncio.sleep(LOOK_SECONDS)
        if names:
            name = demo.NAME if demo.NAME in names else names[0]
            print(SEARCH_TO_TRY.format(address=address, corpus=name, key=key), flush=True)


def _searchable(service: Service) -> list[str]:
    """Return the names of the corpora that have documents and an encoder that is served."""
    served = service.encoders.fingerprints
    return [
        corpus.name
        for corpus, size in service.library.corpora.listing()
        if size.documents and corpus.fingerprint in served
    ]


def _warn_of_stale_corpora(service: Service) -> None:
    for corpus, size in service.library.corpora.listing():
        if is_stale(corpus, size, service.encoders.fingerprints):
            log.warning(
                "corpus %s was embedded by an encoder that this server does not serve. %s",
                corpus.name,
                service.remedy(corpus.name),
            )


def openapi() -> int:
    """Print the OpenAPI document of a server without API keys. docs/openapi.json has the same content."""
    sys.stdout.write(document())
    return 0


def document() -> str:
    """Return the OpenAPI document as JSON. The document depends only on the code, not on the machine or the date."""
    return json.dumps(routes().openapi(), indent=1, ensure_ascii=False) + "\n"

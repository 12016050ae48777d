"""Server `python route.py BACKEND MODEL PORT [DEVICE PRECISION]`: sentence-transformers behind a minimal FastAPI route.

The route favours the peer: it validates nothing, and orjson serialises NumPy arrays directly. It runs one call of the
model at a time. With BACKEND `constant`, it answers with precomputed vectors, which measures the cost of HTTP and JSON.
The interpreter of a peer's environment runs this script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

Encode = Callable[[Sequence[str]], Any]
DIM = 384


def application(answer: Callable[[list[str]], bytes]) -> FastAPI:
    """Return an application with a route in OpenAI's format. The request's `input` must be a list of texts."""
    app = FastAPI()

    @app.post("/embeddings")
    async def embeddings(request: Request) -> Response:
        texts = orjson.loads(await request.body())["input"]
        return Response(answer(texts), media_type="application/json")

    return app


def answers(encode: Encode) -> Callable[[list[str]], bytes]:
    """Return a function that returns the reply for a list of texts."""

    def answer(texts: list[str]) -> bytes:
        rows = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(encode(texts))]
        return orjson.dumps({"object": "list", "data": rows}, option=orjson.OPT_SERIALIZE_NUMPY)

    return answer


def constant() -> Callable[[list[str]], bytes]:
    """Return a function that returns the same reply for all lists of the same number of texts."""
    made = cache(lambda count: answers(lambda _: np.full((count, DIM), DIM**-0.5, np.float32))([""] * count))
    return lambda texts: made(len(texts))


def sentence_transformers(backend: Any, model: str, device: str, precision: str) -> Encode:
    """Return `SentenceTransformer.encode` with its default settings. For precision fp16, the weights are float16."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model, backend=backend, device=device)
    if precision == "fp16":
        encoder.half()
    return lambda texts: encoder.encode(texts, show_progress_bar=False)


if __name__ == "__main__":
    backend, model, port, *place = sys.argv[1:]
    device, precision = place or ("cpu", "fp32")
    answer = constant() if backend == "constant" else answers(sentence_transformers(backend, model, device, precision))
    uvicorn.run(application(answer), host="127.0.0.1", port=int(port), log_level="warning")

"""Ollama's routes for embeddings and models."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Response

from serving.api.routing.answers import embedding_headers, encoded, json_response
from serving.api.routing.deps import ServiceDep
from serving.api.routing.route import DirectRoute, Route
from serving.api.schemas.ollama import (
    OllamaDescription,
    OllamaDetails,
    OllamaEmbedding,
    OllamaEmbeddingRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
    OllamaModel,
    OllamaModels,
    OllamaRequest,
    OllamaShowRequest,
    OllamaVersion,
)
from serving.inference.embeddings import EmbedOptions
from serving.inference.encoders import ServedModel
from serving.operations.bounds import check_max_tokens
from serving.service import Service

router = APIRouter(prefix="/api", tags=["ollama"], route_class=Route)
embedding = APIRouter(prefix="/api", tags=["ollama"], route_class=DirectRoute)

LATEST = ":latest"
"""Tag that every model has in Ollama's API. Clients may omit it."""
VERSION = "0.11.11"
"""Version of Ollama whose API these routes follow. It is the first version with the field `dimensions`. Clients refuse
servers whose version is too old, so the routes do not report the version of Isosphere."""


@embedding.post("/embed", response_model=OllamaEmbeddings, summary="Embed texts (Ollama)")
async def embed(body: OllamaEmbedRequest, service: ServiceDep) -> Response:
    """Return a unit vector for each text.

    A request without texts gets no vectors. Clients send such a request to check whether a model exists.
    """
    model = _asked(body, service)
    answer = {"model": body.model, "embeddings": [], "total_duration": 0, "load_duration": 0, "prompt_eval_count": 0}
    if not body.input:
        return json_response(answer)
    options = EmbedOptions(truncate=body.truncate, dimensions=body.dimensions)
    result = await service.embed(body.input, options, "input", model=model)
    answer |= {
        "embeddings": encoded(result, "float"),
        "total_duration": round(1e9 * result.timing.total),
        "prompt_eval_count": result.tokens,
    }
    return json_response(answer, headers=embedding_headers(result))


@embedding.post("/embeddings", response_model=OllamaEmbedding, summary="Embed a text (Ollama)")
async def embeddings(body: OllamaEmbeddingRequest, service: ServiceDep) -> Response:
    """Return a unit vector, or an empty list for an empty `prompt`. Use `/api/embed` to embed several texts at once."""
    model = _asked(body, service)
    if not body.prompt:
        return json_response({"embedding": []})
    result = await service.embed([body.prompt], EmbedOptions(), at=lambda _: "prompt", model=model)
    return json_response({"embedding": encoded(result, "float")[0]}, headers=embedding_headers(result))


@router.get("/tags", summary="List models (Ollama)")
async def tags(service: ServiceDep) -> OllamaModels:
    """List the served models. The default model is first."""
    return OllamaModels(models=[_model(served) for served in service.encoders.served])


@router.post("/show", summary="Describe a model (Ollama)")
async def show(body: OllamaShowRequest, service: ServiceDep) -> OllamaDescription:
    """Describe a model. `model_info` has the model's maximum length, and the number of dimensions of its vectors."""
    served = _named(body.model, service)
    manifest, model = served.model.manifest, _model(served)
    family = model.details.family
    return OllamaDescription(
        modelfile="",
        parameters="",
        template="{{ .Prompt }}",
        details=model.details,
        model_info={
            "general.architecture": family,
            "general.basename": manifest.name,
            f"{family}.context_length": manifest.max_length,
            f"{family}.embedding_length": manifest.dim,
        },
        capabilities=["embedding"],
        modified_at=model.modified_at,
    )


@router.get("/version", summary="Get the version (Ollama)")
async def version() -> OllamaVersion:
    """Return the version of Ollama whose API these routes follow."""
    return OllamaVersion(version=VERSION)


def _asked(body: OllamaRequest, service: Service) -> str:
    """Return the name of the served model for a request.

    Raises:
        NotFound: there is no such model.
        Invalid: `num_ctx` asks the server to truncate texts to fewer tokens than the model reads.
    """
    served = _named(body.model, service)
    check_max_tokens(body.options.num_ctx, served.model.manifest.max_length, "options.num_ctx")
    return served.name


def _named(name: str, service: Service) -> ServedModel:
    known = any(served.name == name for served in service.encoders.served)
    return service.encoders.named(name if known else name.removesuffix(LATEST))


def _model(served: ServedModel) -> OllamaModel:
    manifest, engine = served.model.manifest, served.embedder and served.embedder.engine
    files = [path.stat() for name in manifest.files if (path := served.folder / name).is_file()]
    changed = datetime.fromtimestamp(max((one.st_mtime for one in files), default=0), UTC)
    family = Path(manifest.backbone).name
    return OllamaModel(
        name=manifest.name + LATEST,
        model=manifest.name + LATEST,
        modified_at=changed.isoformat(),
        size=sum(one.st_size for one in files),
        digest=manifest.fingerprint,
        details=OllamaDetails(
            parent_model="",
            format="onnx",
            family=family,
            families=[family],
            parameter_size="",
            quantization_level=engine.precision.upper().replace("FP", "F") if engine else "",
        ),
    )

"""OpenAI's request and response bodies; the rules of `schemas.Body` hold."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from serving.api.schemas import AskedModel, TextsOrIds, VectorFields, called


class OpenAIEmbeddingsRequest(VectorFields):
    """OpenAI's /v1/embeddings, or with `inputs`; what else /embed takes goes in its clients' `extra_body`."""

    input: TextsOrIds = Field(examples=["A text."])
    model: AskedModel = None

    @model_validator(mode="before")
    @classmethod
    def _inputs(cls, value: Any) -> Any:
        return called("input", value, "inputs")


class OpenAIEmbedding(BaseModel):
    """One vector: numbers, codes, or base64 over little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens embedded; `truncated` counts the texts that were cut."""

    prompt_tokens: int
    total_tokens: int
    truncated: int


class OpenAIEmbeddings(BaseModel):
    """OpenAI's list of embeddings."""

    object: Literal["list"] = "list"
    data: list[OpenAIEmbedding]
    model: str
    usage: Usage


class OpenAIModel(BaseModel):
    """OpenAI's description of a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class OpenAIModels(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class OpenAIErrorBody(BaseModel):
    """What went wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """OpenAI's error."""

    error: OpenAIErrorBody

"""OpenAI's request and response bodies. The requests are subclasses of `bodies.Body`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field

from serving.api.schemas.bodies import AskedModel, TextsOrIds, VectorFields, agreed, lower
from serving.errors import Invalid
from serving.inference.embeddings import EmbedOptions, Encoding, Role

_ROLES: dict[str, Role | None] = {
    "query": "search_query",
    "document": "search_document",
    "passage": "search_document",
    "separation": "clustering",
    "text": None,
    "text-matching": None,
    **{role: role for role in get_args(Role)},
}
"""Roles of texts, by the names that the APIs of Azure, Voyage, NVIDIA and Jina use. Jina may put a domain and a dot
before the name, as in `retrieval.query`."""


def _role(value: Any) -> Any:
    name = value.lower().rpartition(".")[2] if isinstance(value, str) else value
    if not isinstance(name, str) or name not in _ROLES:
        raise ValueError(f"must be one of {', '.join(_ROLES)}")
    return _ROLES[name]


def _only(value: Any) -> Any:
    """Return the requested vector encoding, in lower case. Jina's clients may send a list of one encoding."""
    return lower(value[0] if isinstance(value, list) and len(value) == 1 else value)


_OneEncoding = Annotated[list[Encoding], Field(min_length=1, max_length=1)]
_Role = Annotated[Role | None, BeforeValidator(_role, json_schema_input_type=str)]


class OpenAIEmbeddingsRequest(VectorFields):
    """Request of OpenAI's /v1/embeddings.

    The field `input` may also be called `inputs`. Clients can send other fields of /embed in `extra_body`. Azure, Jina,
    Voyage and Mistral have the same route, with other names for some fields.
    """

    other_names: ClassVar[Mapping[str, str]] = {"inputs": "input"}

    input: TextsOrIds = Field(examples=["A text."])
    model: AskedModel = None
    output_dimension: int | None = Field(default=None, description="Voyage's and Mistral's name for `dimensions`.")
    output_dtype: Annotated[Encoding | None, BeforeValidator(lower)] = Field(
        default=None,
        description="Voyage's and Mistral's name for the number type. With `encoding_format: base64`, the numbers "
        "are encoded in base64.",
    )
    embedding_type: Annotated[
        Encoding | None, BeforeValidator(_only, json_schema_input_type=Encoding | _OneEncoding)
    ] = Field(default=None, description="Jina's name for `output_dtype`.")
    input_type: _Role = Field(
        default=None,
        description="Purpose of the texts. If the bundle has a prompt for this purpose, the prompt is used.",
    )
    task: _Role = Field(default=None, description="Jina's name for `input_type`.")
    normalized: bool = Field(default=True, description="Jina's name for `normalize`.")
    truncation: bool = Field(default=True, description="Voyage's name for `truncate`.")

    @property
    def _types(self) -> dict[str, Encoding | None]:
        return {name: getattr(self, name) for name in ("encoding_format", "output_dtype", "embedding_type")}

    @property
    def numbers(self) -> Encoding:
        """Number type of the vectors."""
        return (
            agreed({name: None if one in ("float", "base64") else one for name, one in self._types.items()}) or "float"
        )

    @property
    def packed(self) -> bool:
        """True if each vector in the answer is a base64 string."""
        return "base64" in self._types.values()

    def options(self) -> EmbedOptions:
        """Return the options of the request.

        Raises:
            Invalid: two fields with the same meaning have different values; or a request with token ids has
                `input_type` or `task`, which only texts may have.
        """
        roles: dict[str, Role | None] = {"input_type": self.input_type, "task": self.task}
        role: Role | None = agreed(roles)
        if role and self.input and not isinstance(self.input[0], str):
            raise Invalid(
                "is only allowed for texts, not for token ids", field="input_type" if self.input_type else "task"
            )
        return replace(
            super().options(),
            normalize=self.normalize and self.normalized,
            truncate=self.truncate and self.truncation,
            role=role,
            dimensions=agreed({"dimensions": self.dimensions, "output_dimension": self.output_dimension}),
            dimensions_field="dimensions" if self.output_dimension is None else "output_dimension",
            calibrated=self.numbers in ("int8", "uint8"),
        )


class OpenAIEmbedding(BaseModel):
    """A vector as numbers, as integer or binary codes, or as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Number of embedded tokens. `truncated` is the number of truncated texts."""

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
    """An error, and the parameter that caused the error."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """OpenAI's error response."""

    error: OpenAIErrorBody

"""Cohere's request and response bodies. The requests are subclasses of `bodies.Body`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from serving.api.schemas.bodies import NOT_DONE, AskedModel, Body, FullyRead, Texts, agreed, lower
from serving.errors import Invalid
from serving.inference.embeddings import Computed, EmbedOptions, Encoding, Role


def _lower_all(value: Any) -> Any:
    """Return the names of encodings, such as "float", in lower case. A single name becomes a list."""
    return [lower(one) for one in value] if isinstance(value, list) else [lower(value)]


def _text_of(value: Any) -> Any:
    """Convert documents that are objects to texts. Cohere v1 and Jina allow such documents."""
    if not isinstance(value, list):
        return value
    return [one["text"] if isinstance(one, dict) and "text" in one else one for one in value]


_SomeEncodings = Annotated[list[Encoding], Field(min_length=1)]


class CohereBlock(Body):
    """One block of an input."""

    type: Annotated[Literal["text"], BeforeValidator(lower)]
    text: str


class CohereInput(Body):
    """Input with one block of text. In Cohere's API, an input may have several blocks of several types."""

    content: list[CohereBlock] = Field(min_length=1, max_length=1)


class CohereEmbedRequest(FullyRead):
    """Request of /v2/embed, with `texts` or `inputs`."""

    texts: Texts | None = None
    inputs: Annotated[list[CohereInput], Field(fail_fast=True)] | None = Field(
        default=None, description="Alternative to `texts`. Each input must have exactly one block, of the type `text`."
    )
    images: None = Field(default=None, description="Not supported, because the encoders embed only text.")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of tokens of a text. It must not be below the model's maximum length, to which "
        "longer texts are truncated.",
    )
    model: AskedModel = None
    input_type: Annotated[Role | None, BeforeValidator(lower)] = Field(
        default=None,
        description="Purpose of the texts. If the bundle has a prompt for this purpose, the prompt is used.",
    )
    embedding_types: Annotated[
        list[Encoding], BeforeValidator(_lower_all, json_schema_input_type=Encoding | _SomeEncodings)
    ] = Field(default=["float"], min_length=1, fail_fast=True)
    output_dimension: int | None = None
    truncate: Annotated[Literal["none", "start", "end"], BeforeValidator(lower)] = Field(
        default="end",
        description="Side on which a text that is too long is truncated. With `none`, such a text is refused.",
    )

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.texts is None) == (self.inputs is None):
            raise Invalid("give either texts or inputs", field="texts")
        return self

    @property
    def field(self) -> str:
        """Name of the field that contains the texts."""
        return "inputs" if self.texts is None else "texts"

    def all_texts(self) -> list[str]:
        """Return the texts of `texts` or of `inputs`."""
        return [one.content[0].text for one in self.inputs or ()] if self.texts is None else self.texts

    def options(self) -> EmbedOptions:
        return EmbedOptions(
            truncate=self.truncate != "none",
            direction="left" if self.truncate == "start" else "right",
            role=self.input_type,
            dimensions=self.output_dimension,
            dimensions_field="output_dimension",
            calibrated=not {"int8", "uint8"}.isdisjoint(self.embedding_types),
        )


class CohereMeta(BaseModel):
    """Version of Cohere's API, number of billed tokens, and warnings."""

    api_version: dict[Literal["version"], str]
    billed_units: dict[Literal["input_tokens"], int]
    warnings: list[str] | None = None


class CohereEmbeddings(BaseModel):
    """Vectors of the texts, by number type."""

    id: str
    embeddings: dict[Encoding, list[list[float]] | list[str]]
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"]


class CohereDocument(BaseModel):
    """A document of the request."""

    text: str


_SomeDocuments = Annotated[list[str | CohereDocument], Field(min_length=1)]


class CohereRerankRequest(FullyRead):
    """Request of /v1/rerank and /v2/rerank, for clients of Cohere, Jina and Voyage."""

    not_done: ClassVar[Mapping[str, tuple[Any, str]]] = NOT_DONE | {"method": (None, "send it to /rerank")}

    query: str = Field(examples=["How do I read a file line by line?"])
    documents: Annotated[Texts, BeforeValidator(_text_of, json_schema_input_type=str | _SomeDocuments)]
    model: AskedModel = None
    top_n: int | None = Field(default=None, ge=1)
    top_k: int | None = Field(default=None, ge=1, description="Voyage's name for `top_n`.")
    truncation: bool = Field(
        default=True,
        description="If true, texts that are too long for the model or for `max_tokens_per_doc` are truncated. If "
        "false, they are refused.",
    )
    max_tokens_per_doc: int | None = Field(
        default=4096,
        ge=1,
        description="Maximum number of tokens of each document that the model reads. The model's maximum length is "
        "also a limit.",
    )
    return_documents: bool = False

    @property
    def most(self) -> int | None:
        """Maximum number of documents in the answer."""
        return agreed({"top_n": self.top_n, "top_k": self.top_k})

    def options(self) -> EmbedOptions:
        return EmbedOptions(truncate=self.truncation)


class CohereRank(BaseModel):
    """Score of one document. `index` is the position of the document in the request."""

    index: int
    relevance_score: float
    document: CohereDocument | None = None


class CohereRanking(BaseModel):
    """Scores of the best documents, best first."""

    id: str
    model: str
    results: list[CohereRank]
    meta: CohereMeta
    usage: dict[str, int]


class CohereError(BaseModel):
    """Error response of Cohere's routes."""

    message: str


def meta(embeddings: Computed, *, version: str) -> dict[str, Any]:
    """Return the JSON object for `CohereMeta`."""
    warnings = []
    if embeddings.truncated:
        warnings.append(f"{embeddings.truncated} texts were truncated")
    if embeddings.warning:
        warnings.append(embeddings.warning)
    return {
        "api_version": {"version": version},
        "billed_units": {"input_tokens": embeddings.tokens},
        **({"warnings": warnings} if warnings else {}),
    }

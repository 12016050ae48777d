"""Request and response bodies. `null` is absent, unknown fields are ignored, enums are read in any case."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, FiniteFloat, Tag, model_validator

from serving.embedder import EmbedOptions

Encoding = Literal["float", "base64"]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _input_list(value: Any) -> Any:
    """OpenAI's four shapes as two: a text is a list of one, and so are the ids of one text."""
    if isinstance(value, str):
        return [value]
    return [value] if isinstance(value, list) and value and isinstance(value[0], int) else value


def _input_kind(value: Any) -> str:
    return "ids" if isinstance(value, list) and value and isinstance(value[0], list) else "texts"


Texts = Annotated[
    list[str],
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(examples=[["A list of texts.", "Or one text."]]),
]
TextsOrIds = Annotated[
    Annotated[list[str], Tag("texts")] | Annotated[list[list[int]], Tag("ids")],
    Discriminator(_input_kind),
    BeforeValidator(_input_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]
UNION_TAGS = {"texts", "ids"}
"""Steps of an error's location that are ours, not the caller's."""


class Body(BaseModel):
    """The rules that hold for every request body."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value


class TruncationFields(Body):
    """Shared by the native inference routes."""

    truncate: bool = True
    truncation_direction: Annotated[Literal["right", "left"], BeforeValidator(_lower)] = "right"
    prompt_name: str | None = Field(default=None, description="a key of the bundle's prompts, put before every text")

    def options(self) -> EmbedOptions:
        """What the service wants to know."""
        return EmbedOptions(truncate=self.truncate, direction=self.truncation_direction, prompt_name=self.prompt_name)


class EmbedRequest(TruncationFields):
    """text-embeddings-inference's /embed."""

    inputs: Texts
    normalize: bool = True
    dimensions: int | None = Field(default=None, description="leading dimensions to keep; cut before normalising")
    encoding_format: Annotated[Encoding, BeforeValidator(_lower)] = "float"

    def options(self) -> EmbedOptions:
        """What the service wants to know."""
        return EmbedOptions(
            normalize=self.normalize,
            truncate=self.truncate,
            direction=self.truncation_direction,
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
        )


class SourceSentences(Body):
    """One text against many."""

    source_sentence: str
    sentences: list[str]


class SentencePairs(Body):
    """Many texts against many."""

    sentences_a: list[str]
    sentences_b: list[str]


def _pair_kind(value: Any) -> str:
    return "pairs" if isinstance(value, dict) and value.keys() & {"sentences_a", "sentences_b"} else "source"


class SimilarityRequest(Body):
    """text-embeddings-inference's /similarity, and the matrix form."""

    inputs: Annotated[
        Annotated[SourceSentences, Tag("source")] | Annotated[SentencePairs, Tag("pairs")], Discriminator(_pair_kind)
    ] = Field(examples=[{"source_sentence": "A cat sits outside.", "sentences": ["A feline is outdoors.", "Taxes."]}])
    parameters: TruncationFields = TruncationFields()


UNION_TAGS |= {"source", "pairs"}


class InferenceRequest(Body):
    """`inputs` decides: texts are embedded, an object is a question of similarity."""

    inputs: Any = Field(examples=["A text."])


class OpenAIEmbeddingsRequest(Body):
    """OpenAI's /v1/embeddings."""

    input: TextsOrIds = Field(examples=["A text."])
    model: str | None = None
    encoding_format: Annotated[Encoding, BeforeValidator(_lower)] = "float"
    dimensions: int | None = None


class OpenAIEmbedding(BaseModel):
    """One vector: numbers, or base64 over little-endian float32."""

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


class CorpusRequest(Body):
    """What a corpus is for, and how exact its search must be."""

    description: Annotated[str, Field(max_length=2000)] | None = None
    recall_target: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="recall@10; 0.95 by default"
    )


class CorpusAnswer(BaseModel):
    """A corpus and its state."""

    name: str
    description: str | None
    documents: int
    bytes: int
    dim: int | None
    fingerprint: str | None = Field(description="of the bundle that embedded it; null while it was always empty")
    recall_target: float
    index: str
    recall: float | None = Field(description="recall@10 against exact search")
    state: Literal["ready", "stale"] = Field(description="stale: embedded by another bundle than the one served")
    created: float


class CorporaAnswer(BaseModel):
    """All corpora."""

    corpora: list[CorpusAnswer]


class DocumentAnswer(BaseModel):
    """A stored document."""

    id: str
    text: str
    metadata: dict[str, Any]


class DocumentsAnswer(BaseModel):
    """A page of documents; `cursor` fetches the next one, null on the last."""

    documents: list[DocumentAnswer]
    cursor: str | None


class UploadAnswer(BaseModel):
    """The ids stored, durable and searchable; `errors` only with `on_error=skip`."""

    ids: list[str]
    count: int
    errors: list[dict[str, str]] | None = None


class DeleteRequest(Body):
    """Which documents to delete."""

    filter: dict[str, Any] = Field(examples=[{"module": "asyncio.tasks"}])


class DeleteAnswer(BaseModel):
    """How many are gone."""

    deleted: int


class SearchRequest(Body):
    """One of `query`, `queries` and `vector`, and how to answer."""

    query: str | None = Field(default=None, examples=["run a coroutine with a time limit"])
    queries: list[str] | None = None
    vector: list[FiniteFloat] | None = None
    k: int = Field(default=10, ge=1, le=1000)
    offset: int = Field(default=0, ge=0, le=10_000)
    mode: Annotated[Literal["dense", "lexical", "hybrid"], BeforeValidator(_lower)] = "dense"
    filter: dict[str, Any] | None = None
    exact: bool = False
    min_score: FiniteFloat | None = None
    with_text: bool = True
    with_metadata: bool = True
    with_vector: bool = False


class CorpusSearchRequest(SearchRequest):
    """A search that names its corpus in the body."""

    corpus: str


class HitAnswer(BaseModel):
    """A document found; `score` is its cosine to the query."""

    id: str
    score: float
    text: str | None = None
    metadata: dict[str, Any] | None = None
    vector: list[float] | None = None


class SearchAnswer(BaseModel):
    """`hits` of a query or vector, best first; `results`, one entry a query, of `queries`."""

    hits: list[HitAnswer] | None = None
    results: list[dict[Literal["hits"], list[HitAnswer]]] | None = None
    took_ms: float
    mode: Literal["dense"]
    index: str


class OpenAIErrorBody(BaseModel):
    """What went wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """OpenAI's error."""

    error: OpenAIErrorBody


class ErrorAnswer(BaseModel):
    """The native family's error."""

    error: str
    error_type: str

"""Request and response bodies. `null` is absent, unknown fields are ignored, enums are read in any case."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from serving.embeddings import EmbedOptions, Encoding

UNION_TAGS = _TEXTS, _IDS, _SOURCE, _PAIRS = "<texts>", "<ids>", "<source>", "<pairs>"
"""Steps of an error's location that are ours, not the caller's."""


def lower(value: Any) -> Any:
    """Enums are read in any case."""
    return value.lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _input_list(value: Any) -> Any:
    """OpenAI's four shapes as two: a text is a list of one, and so are the ids of one text."""
    if isinstance(value, str):
        return [value]
    return [value] if isinstance(value, list) and value and isinstance(value[0], int) else value


def _input_kind(value: Any) -> str:
    return _IDS if isinstance(value, list) and value and isinstance(value[0], list) else _TEXTS


Strings = Annotated[list[str], Field(fail_fast=True)]
"""Checked up to the first that is none: a body of millions would otherwise become millions of errors."""
Ids = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[
    Strings,
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(examples=[["A list of texts.", "Or one text."]]),
]
TextsOrIds = Annotated[
    Annotated[Strings, Tag(_TEXTS)] | Annotated[list[Ids], Field(fail_fast=True), Tag(_IDS)],
    Discriminator(_input_kind),
    BeforeValidator(_input_list, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class Body(BaseModel):
    """The rules that hold for every request body: types are taken at their word, save that an integer is a float."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value


class TextFields(Body):
    """How texts are read: shared by all that embed them."""

    truncate: bool = True
    truncation_direction: Annotated[Literal["right", "left"], BeforeValidator(lower)] = "right"
    prompt: str | None = Field(default=None, description="put before every text; empty: nothing is")
    prompt_name: str | None = Field(default=None, description="a key of the bundle's prompts, put before every text")

    def options(self) -> EmbedOptions:
        """What the service wants to know."""
        return EmbedOptions(
            truncate=self.truncate,
            direction=self.truncation_direction,
            prompt=self.prompt,
            prompt_name=self.prompt_name,
        )


class VectorFields(TextFields):
    """How vectors are answered."""

    normalize: bool = True
    dimensions: int | None = Field(default=None, description="leading dimensions to keep; cut before normalising")
    encoding_format: Annotated[Encoding, BeforeValidator(lower)] = Field(
        default="float", description="base64 is of little-endian float32; the others are codes of the unit vector"
    )

    def options(self) -> EmbedOptions:
        """What the service wants to know."""
        return EmbedOptions(
            normalize=self.normalize,
            truncate=self.truncate,
            direction=self.truncation_direction,
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
            calibrated=self.encoding_format in ("int8", "uint8"),
        )


class EmbedRequest(VectorFields):
    """text-embeddings-inference's /embed."""

    inputs: TextsOrIds = Field(examples=[["A list of texts.", "Or one text."]])


class SourceSentences(Body):
    """One text against many."""

    source_sentence: str
    sentences: Texts


class SentencePairs(Body):
    """Many texts against many."""

    sentences_a: Texts
    sentences_b: Texts


def _pair_kind(value: Any) -> str:
    return _PAIRS if isinstance(value, dict) and value.keys() & {"sentences_a", "sentences_b"} else _SOURCE


class SimilarityRequest(Body):
    """text-embeddings-inference's /similarity, and the matrix form."""

    inputs: Annotated[
        Annotated[SourceSentences, Tag(_SOURCE)] | Annotated[SentencePairs, Tag(_PAIRS)], Discriminator(_pair_kind)
    ] = Field(examples=[{"source_sentence": "A cat sits outside.", "sentences": ["A feline is outdoors.", "Taxes."]}])
    parameters: TextFields = TextFields()


class InferenceRequest(Body):
    """`inputs` decides: texts are embedded, an object is a question of similarity."""

    inputs: Any = Field(examples=["A text."])


class RerankRequest(TextFields):
    """text-embeddings-inference's /rerank."""

    query: str = Field(examples=["How do I read a file line by line?"])
    texts: Texts = Field(examples=[["A file object is its own iterator.", "Sockets are read by recv."]])
    raw_scores: bool = Field(default=True, description="cosines; false: their sigmoid")
    return_text: bool = False


class Rank(BaseModel):
    """A text by its place in the request."""

    index: int
    score: float
    text: str | None = None


class TokenizeRequest(Body):
    """text-embeddings-inference's /tokenize."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt: str | None = None
    prompt_name: str | None = None


class Token(BaseModel):
    """A token and the characters it stands for; a special one stands for none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeRequest(Body):
    """text-embeddings-inference's /decode."""

    ids: Annotated[
        list[Ids],
        Field(fail_fast=True, examples=[[101, 7592, 102]]),
        BeforeValidator(_input_list, json_schema_input_type=list[int] | list[list[int]]),
    ]
    skip_special_tokens: bool = True


class OpenAIEmbeddingsRequest(VectorFields):
    """OpenAI's /v1/embeddings; what else /embed takes goes in its clients' `extra_body`."""

    input: TextsOrIds = Field(examples=["A text."])
    model: str | None = None


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


class ErrorAnswer(BaseModel):
    """The native family's error."""

    error: str
    error_type: str

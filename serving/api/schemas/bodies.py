"""Request and response bodies of the native routes, and the base classes of all bodies.

`null` means absent, and enum values are case-insensitive. Routes for clients of other servers ignore unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    NonNegativeInt,
    RootModel,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from models.bundle.tokenizer import TextPair
from serving.corpora.filters import is_number
from serving.errors import Invalid, Kind
from serving.inference.embeddings import EmbedOptions, Encoding

T = TypeVar("T")
UNION_TAGS = _TEXTS, _IDS, _SOURCE, _PAIRS, _EMBED, _COMPARE, _ONE_PAIR, _PAIR_LIST, SORT_TEXT, SORT_OBJECT = (
    *("<texts>", "<ids>", "<source>", "<pairs>"),
    *("<embed>", "<compare>", "<one pair>", "<list of pairs>"),
    *("<sort as text>", "<sort as object>"),
)
"""Names of union members that pydantic inserts into the location of an error. Errors must not show them, because they
are not part of the request."""


def lower(value: Any) -> Any:
    """Convert a string to lower case, so that enum values are case-insensitive."""
    return value.lower() if isinstance(value, str) else value


def _or_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    one_of_several = schema.get("anyOf")
    if {"type": "null"} in (one_of_several or ()):
        return schema
    about = {key: schema[key] for key in ("title", "description", "default", "examples") if key in schema}
    itself = {key: value for key, value in schema.items() if key not in about and key != "anyOf"}
    return {"anyOf": [*(one_of_several or [itself]), {"type": "null"}]} | about


def listed(value: Any) -> Any:
    """Convert a single text to a list."""
    if not isinstance(value, str | list):
        raise ValueError("must be a text or a list of texts")
    return [value] if isinstance(value, str) else value


def _input_list(value: Any) -> Any:
    """Convert OpenAI's four forms of input to two forms: a list of texts, or a list of lists of token ids."""
    if not isinstance(value, str | list):
        raise ValueError("must be a text, a list of texts, a list of token ids, or a list of such lists")
    return [value] if isinstance(value, str) else _id_lists(value)


def _id_lists(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("must be a list of token ids, or a list of such lists")
    return [value] if value and is_number(value[0]) else value


def _input_kind(value: Any) -> str:
    return _IDS if isinstance(value, list) and value and isinstance(value[0], list) else _TEXTS


Strings = Annotated[list[str], Field(fail_fast=True)]
"""List of strings. Validation stops at the first error, because a list may otherwise have millions of errors."""
Ids = Annotated[list[int], Field(fail_fast=True)]
_SomeStrings = Annotated[list[str], Field(min_length=1)]
_SomeIds = Annotated[list[NonNegativeInt], Field(min_length=1)]
"""Type for the OpenAPI document only. The server checks the limits itself, to give better error messages."""
Texts = Annotated[
    Strings,
    BeforeValidator(listed, json_schema_input_type=str | _SomeStrings),
    Field(examples=[["A list of texts.", "Or one text."]]),
]
TextsOrIds = Annotated[
    Annotated[Strings, Tag(_TEXTS)] | Annotated[list[Ids], Field(fail_fast=True), Tag(_IDS)],
    Discriminator(_input_kind),
    BeforeValidator(
        _input_list,
        json_schema_input_type=str | _SomeStrings | _SomeIds | Annotated[list[_SomeIds], Field(min_length=1)],
    ),
]

AskedModel = Annotated[str | None, Field(description="Name of a model in /v1/models. Default: the first model.")]


Vectors = list[list[float]] | list[str]
"""Vectors as numbers, as integer or binary codes, or as base64 of little-endian float32."""


class Body(BaseModel):
    """Base class of request bodies. Types are strict, except that an integer is accepted as a float."""

    model_config = ConfigDict(strict=True)
    other_names: ClassVar[Mapping[str, str]] = {}
    """Names of fields in other APIs, each with the name of the same field in this class. If a request has a field under
    both names, the value under the name in this class counts."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        present = {key: one for key, one in value.items() if one is not None}
        return {name: present[other] for other, name in cls.other_names.items() if other in present} | present

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        described = handler.resolve_ref_schema(schema)
        for name, field in described.get("properties", {}).items():
            if name not in described.get("required", ()):
                described["properties"][name] = _or_null(field)
        return schema


class ClosedBody(Body):
    """Base class of request bodies that refuse unknown fields.

    If a misspelt `filter` were ignored, the answer would include documents that the caller wanted to exclude.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _only_fields(cls, value: Any) -> Any:
        """Refuse unknown fields.

        The error lists the known fields. Pydantic's own error does not list them.
        """
        for name in value if isinstance(value, dict) else ():
            if name not in cls.model_fields:
                raise Invalid(
                    f"is not a field of this request; its fields are {', '.join(cls.model_fields)}", field=name[:80]
                )
        return value


ALIKE: tuple[tuple[tuple[str, ...], list[Any]], ...] = (
    (("dimensions", "output_dimension", "output_dimensionality", "outputDimensionality"), []),
    (("encoding_format", "embedding_types", "output_dtype", "embedding_type"), ["float", ["float"]]),
    (("input_type", "task", "task_type", "taskType", "prompt_name"), []),
    (("normalize", "normalized"), [True]),
    (("truncate", "truncation", "auto_truncate", "autoTruncate"), [True]),
    (("truncation_direction",), ["right"]),
    (("prompt",), []),
)
"""Groups of field names with the same meaning in APIs such as those of OpenAI, Cohere, Jina, Voyage, Mistral and
Gemini. A group may have a single name. For each group: the names, and the values that every route accepts because these
values change nothing."""
NOT_DONE: dict[str, tuple[Any, str]] = {
    "late_chunking": (False, "every text is embedded separately"),
    "return_multivector": (False, "each text gets one vector"),
    "return_embeddings": (False, "use /v1/embeddings"),
    "rank_fields": (["text"], "only the text of a document is ranked"),
    "title": ("", "put the title before the text"),
}
"""Fields of other APIs that no route supports. For each field: the value that is accepted because it changes nothing,
and the error message for other values."""


class FullyRead(Body):
    """Base class of request bodies that refuse known fields of other routes or APIs, unless the value changes nothing.

    `ALIKE` and `not_done` list these fields and the values that change nothing. Any other unknown field is ignored.
    """

    not_done: ClassVar[Mapping[str, tuple[Any, str]]] = NOT_DONE
    """Fields that the route refuses with a reason, in the form of `NOT_DONE`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_fields(cls, value: Any) -> Any:
        for name in value.keys() - cls.model_fields.keys() if isinstance(value, dict) else ():
            if name in cls.not_done:
                harmless, why = cls.not_done[name]
                if lower(value[name]) not in (None, harmless):
                    raise Invalid(f"is not supported: {why}", field=name)
                continue
            for names, accepted in ALIKE:
                if name in names and lower(value[name]) not in (None, *accepted):
                    own = next((one for one in names if one in cls.model_fields), None)
                    reason = f"is called {own}" if own else "is not supported"
                    raise Invalid(f"{reason} by this route", field=name)
        return value


class TextFields(FullyRead):
    """Fields of all requests that embed texts."""

    truncate: bool = True
    truncation_direction: Annotated[Literal["right", "left"], BeforeValidator(lower)] = "right"
    prompt: str | None = Field(
        default=None, description="Prompt: text that is put before every input text. An empty string means no prompt."
    )
    prompt_name: str | None = Field(
        default=None, description="Name of one of the bundle's prompts, which is put before every input text."
    )

    def options(self) -> EmbedOptions:
        return EmbedOptions(
            truncate=self.truncate,
            direction=self.truncation_direction,
            prompt=self.prompt,
            prompt_name=self.prompt_name,
        )


class VectorFields(TextFields):
    """Fields that determine the values and the number format of the vectors in the answer."""

    normalize: bool = True
    dimensions: int | None = Field(
        default=None,
        description="Number of leading dimensions to return. Vectors are truncated first and normalized afterwards.",
        json_schema_extra={"minimum": 1},
    )
    encoding_format: Annotated[Encoding, BeforeValidator(lower)] = Field(
        default="float",
        description="Encoding of the vectors. `base64` encodes little-endian float32. The integer and binary formats "
        "quantize the unit vector.",
    )

    def options(self) -> EmbedOptions:
        calibrated = self.encoding_format in ("int8", "uint8")
        return replace(super().options(), normalize=self.normalize, dimensions=self.dimensions, calibrated=calibrated)


def agreed(given: Mapping[str, T | None]) -> T | None:
    """Return the common value of fields with the same meaning, or None if no field is given.

    Raises:
        Invalid: two fields have different values.
    """
    known = [(name, one) for name, one in given.items() if one is not None]
    for name, one in known[1:]:
        if one != known[0][1]:
            raise Invalid(f"means the same as {known[0][0]}, but has another value: give only one of them", field=name)
    return known[0][1] if known else None


class EmbedRequest(VectorFields):
    """Request of text-embeddings-inference's /embed.

    The field `inputs` may also be called `input`, as in OpenAI's API.
    """

    other_names: ClassVar[Mapping[str, str]] = {"input": "inputs"}

    inputs: TextsOrIds = Field(examples=[["A list of texts.", "Or one text."]])
    model: AskedModel = None


TEXT_VECTORS = {
    "normalize": (False, "token vectors are the unchanged vectors of the encoder's last layer"),
    "dimensions": (None, "token vectors always have all dimensions of the encoder's last layer"),
    "encoding_format": ("float", "token vectors are always numbers"),
}
"""Fields of /embed that /embed_all does not support. For each field: the value that is accepted because it changes
nothing, and the error message for other values."""


class EmbedAllRequest(TextFields):
    """Request of text-embeddings-inference's /embed_all."""

    not_done: ClassVar[Mapping[str, tuple[Any, str]]] = (
        NOT_DONE | TEXT_VECTORS | {"normalized": TEXT_VECTORS["normalize"]}
    )

    inputs: TextsOrIds = Field(examples=[["A list of texts.", "Or one text."]])
    model: AskedModel = None


class SourceSentences(Body):
    """One text, and the texts to compare with it."""

    source_sentence: str
    sentences: Texts


class SentencePairs(Body):
    """Two lists of texts. Each text of one list is compared with each text of the other list."""

    sentences_a: Texts
    sentences_b: Texts


def _pair_kind(value: Any) -> str:
    return _PAIRS if isinstance(value, dict) and value.keys() & {"sentences_a", "sentences_b"} else _SOURCE


def _any_of(schema: JsonSchemaValue) -> None:
    """Replace `oneOf` in pydantic's schema by `anyOf`.

    With `oneOf`, a body with the fields of both alternatives would be invalid.
    """
    schema["anyOf"] = schema.pop("oneOf")


class SimilarityRequest(FullyRead):
    """Request of text-embeddings-inference's /similarity. It can also ask for a matrix of similarities."""

    not_done: ClassVar[Mapping[str, tuple[Any, str]]] = NOT_DONE | {
        name: (field.default, "put it into parameters") for name, field in TextFields.model_fields.items()
    }

    inputs: Annotated[
        Annotated[SourceSentences, Tag(_SOURCE)] | Annotated[SentencePairs, Tag(_PAIRS)], Discriminator(_pair_kind)
    ] = Field(
        examples=[{"source_sentence": "A cat sits outside.", "sentences": ["A feline is outdoors.", "Taxes."]}],
        json_schema_extra=_any_of,
    )
    parameters: TextFields = TextFields()
    model: AskedModel = None


def _asked(raw: Any) -> str:
    return _COMPARE if isinstance(raw, dict) and isinstance(raw.get("inputs"), dict) else _EMBED


class InferenceRequest(
    RootModel[
        Annotated[
            Annotated[EmbedRequest, Tag(_EMBED)] | Annotated[SimilarityRequest, Tag(_COMPARE)], Discriminator(_asked)
        ]
    ]
):
    """Request to embed or to compare texts.

    If `inputs` is an object, its texts are compared. Otherwise `inputs` is embedded.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(TypeAdapter(EmbedRequest | SimilarityRequest).core_schema)


class RerankRequest(TextFields):
    """Request of text-embeddings-inference's /rerank."""

    not_done: ClassVar[Mapping[str, tuple[Any, str]]] = NOT_DONE | dict.fromkeys(
        ("top_n", "top_k"), (None, "this route returns all texts")
    )

    query: str = Field(examples=["How do I read a file line by line?"])
    texts: Texts = Field(examples=[["A file object is its own iterator.", "Sockets are read by recv."]])
    method: Annotated[Literal["cosine", "late_interaction", "cross_encoder"] | None, BeforeValidator(lower)] = Field(
        default=None,
        description="`cosine` compares one vector of each text. `late_interaction` compares the vectors of all tokens. "
        "`cross_encoder` reads query and text together. Default: `cross_encoder` if `model` is one, else `cosine`.",
    )
    raw_scores: bool | None = Field(
        default=None,
        description="If true, return raw scores. If false, return the sigmoid of the scores. Default: false for a "
        "cross-encoder, else true.",
    )
    return_text: bool = False
    model: AskedModel = None


def _pairs_kind(value: Any) -> str:
    return _PAIR_LIST if isinstance(value, list) and value and isinstance(value[0], list) else _ONE_PAIR


_TwoTexts = Annotated[list[str], Field(min_length=2, max_length=2)]


class PredictRequest(FullyRead):
    """Request of text-embeddings-inference's /predict, for pairs of texts."""

    inputs: Annotated[
        Annotated[_TwoTexts, Tag(_ONE_PAIR)] | Annotated[list[_TwoTexts], Field(fail_fast=True), Tag(_PAIR_LIST)],
        Discriminator(_pairs_kind),
    ] = Field(
        description="One pair of texts, or a list of pairs.",
        examples=[[["Who makes music?", "A man plays the guitar."]]],
        json_schema_extra=_any_of,
    )
    truncate: bool = True
    truncation_direction: Annotated[Literal["right", "left"], BeforeValidator(lower)] = "right"
    raw_scores: bool = Field(default=False, description="If true, return raw scores instead of their sigmoid.")
    model: str | None = Field(default=None, description="Name of a cross-encoder. Default: the first cross-encoder.")

    @property
    def single(self) -> bool:
        """True if `inputs` is a single pair of texts, False if it is a list of pairs."""
        return isinstance(self.inputs[0], str)

    @property
    def pairs(self) -> list[TextPair]:
        """All pairs of texts in the request, also if `inputs` is a single pair."""
        given: list[Any] = [self.inputs] if self.single else self.inputs
        return [(first, second) for first, second in given]


class Prediction(BaseModel):
    """Score of a pair of texts, and the name of the model's output label."""

    score: float
    label: str


class Rank(BaseModel):
    """Score of one text. `index` is the position of the text in the request."""

    index: int
    score: float
    text: str | None = None


class TokenizeRequest(FullyRead):
    """Request of text-embeddings-inference's /tokenize."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt: str | None = None
    prompt_name: str | None = None
    model: AskedModel = None


class Token(BaseModel):
    """A token, and the positions of its characters in the text. A special token has no positions."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeRequest(FullyRead):
    """Request of text-embeddings-inference's /decode."""

    ids: Annotated[
        list[Ids],
        Field(fail_fast=True, examples=[[101, 7592, 102]]),
        BeforeValidator(_id_lists, json_schema_input_type=_SomeIds | Annotated[list[_SomeIds], Field(min_length=1)]),
    ]
    skip_special_tokens: bool = True
    model: AskedModel = None


class ErrorAnswer(BaseModel):
    """Error response of the native routes."""

    error: str
    error_type: Kind

"""Every option of the server: a command-line flag, an environment variable `ISOSPHERE_<OPTION>`, a field here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from models import cpus
from models.runtimes.base import Device
from serving.engines import ENGINES
from serving.indexes import INDEXES
from serving.ports import EngineOptions
from serving.stores import STORES


class SettingsError(ValueError):
    """A bad option, in one line."""


class Settings(BaseSettings):
    """Serve embeddings and semantic search over HTTP."""

    model_config = SettingsConfigDict(
        env_prefix="ISOSPHERE_",
        frozen=True,
        extra="ignore",
        cli_prog_name="python -m serving",
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    bundle: Path = Field(default=Path("artifacts/default"), description="folder of the encoder to serve")
    data: Path = Field(default=Path("var"), description="folder for corpora")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    no_demo: bool = Field(default=False, description="do not build the demo corpus when there is no corpus")
    engine: str = Field(
        default="auto",
        description=f"what runs the model: {', '.join(ENGINES)}; auto is the fastest here, measured once",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = Field(
        default="auto", description="numbers it computes in; auto: the fastest that keep the vectors"
    )
    store: str = Field(default="sqlite", description=f"where corpora are kept: {', '.join(STORES)}")
    index: str = Field(default="exact", description=f"what searches vectors: {', '.join(INDEXES)}")
    device: Device = Field(default="auto", description="where the model runs")
    threads: PositiveInt | None = Field(default=None, description="threads of the engine; default: the CPU quota")
    max_batch_tokens: PositiveInt = Field(default=4096, description="padded tokens in one run of the model")
    max_queued_tokens: PositiveInt = Field(default=1_000_000, description="tokens waiting before requests get 429")
    max_request_texts: PositiveInt = Field(default=2048, description="texts in one request")
    max_request_tokens: PositiveInt = Field(
        default=300_000, description="tokens in one request: of texts after truncation, of token ids before"
    )
    max_body_bytes: PositiveInt = Field(default=32_000_000, description="bytes of one request body")
    max_text_bytes: PositiveInt = Field(default=999_999, description="bytes of one text in UTF-8")
    max_metadata_bytes: PositiveInt = Field(default=65_536, description="bytes of one document's metadata as JSON")
    max_upload_documents: PositiveInt = Field(default=256, description="documents in one upload")
    max_tokenizing_characters: PositiveInt = Field(
        default=64_000_000, description="characters waiting for the tokenizer before requests get 429"
    )
    max_search_hits: PositiveInt = Field(default=10_000, description="hits ranked for one request, over its queries")
    max_search_characters: PositiveInt = Field(
        default=100_000_000, description="characters in the texts found for one request"
    )
    drain_seconds: NonNegativeFloat = Field(default=20.0, description="time for admitted requests after SIGTERM")

    @field_validator("engine", "store", "index")
    @classmethod
    def _listed(cls, value: str, info: ValidationInfo) -> str:
        tables: dict[str | None, Collection[str]] = {"engine": ENGINES, "store": STORES, "index": INDEXES}
        table = tables[info.field_name]
        if value not in table:
            raise ValueError(f"must be one of {', '.join(table)}")
        return value

    @model_validator(mode="after")
    def _a_request_fits_the_queue(self) -> Self:
        if self.max_queued_tokens < self.max_request_tokens:
            raise ValueError(
                "max_queued_tokens must not be below max_request_tokens: no such request could be admitted"
            )
        return self

    @property
    def engine_options(self) -> EngineOptions:
        """What they say of the engine; its threads are the CPU quota where they don't."""
        precision = None if self.precision == "auto" else self.precision
        return EngineOptions(self.device, self.threads or cpus.available(), precision)


def read_settings(arguments: Sequence[str]) -> Settings:
    """Flags before environment before defaults.

    Raises:
        SettingsError: a value is not legal; the message names the option.
        SystemExit: `--help` (0), or a flag that does not exist (2, after one line on stderr).
    """
    try:
        return Settings(_cli_parse_args=list(arguments))  # type: ignore[call-arg]
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        raise SettingsError(f"{option}{first['msg'].removeprefix('Value error, ')}") from None

"""Settings of the server.

Each setting is a command-line option, an environment variable `ISOSPHERE_<OPTION>` and a field of `Settings`.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

import pydantic_settings
from pydantic import (
    Field,
    HttpUrl,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from models import cpus
from models.cli.command_line import Parser, near_option
from models.cli.table import COMMANDS, texts
from models.names import RUNTIME_NAMES, Device
from serving.operations.bounds import NAMED_CORPORA, Bounds
from serving.operations.keys import Rate
from serving.operations.limits import GRACE_SECONDS, Limits
from serving.operations.logs import LogFormat

ENGINES = ("auto", *RUNTIME_NAMES, "fake")
STORES = ("sqlite", "memory")
INDEXED_FROM = 20_000
"""Default of `--exact-below`: the minimum number of passages for which a corpus gets an approximate index."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*\s,]+")


class SettingsError(ValueError):
    """An option is not valid. The message is one line."""


class Settings(BaseSettings):
    """Settings of the server. The description of each field is the help text of its option."""

    model_config = SettingsConfigDict(
        env_prefix="ISOSPHERE_",
        frozen=True,
        extra="ignore",
        cli_prog_name="isosphere serve",
        json_schema_extra={"description": "\n\n".join(texts(*COMMANDS["serve"][:2]).values())},
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
    )

    bundle: str = Field(
        default="artifacts/default",
        description="encoder to serve: the folder of a bundle, minilm, or minilm+NAME for an adapter in "
        "models/adapters; if the option is not set and its default folder does not exist, minilm+default is served; "
        f"for several encoders, repeat the option or separate them by {os.pathsep}",
    )
    data: Path = Field(default=Path("var"), description="folder for corpora")
    host: str = Field(default="localhost", description="address to listen on; localhost means 127.0.0.1 and ::1")
    port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0 selects a free port")
    api_keys_file: Path | None = Field(
        default=None, description="file of API keys, written by `isosphere keys`; with this option, requests need a key"
    )
    api_keys_grace: NonNegativeFloat = Field(
        default=GRACE_SECONDS,
        description="seconds for which keys stay valid while their file can't be read; afterwards, requests get 503",
    )
    insecure: bool = Field(
        default=False, description="allow other machines to connect without API keys, and accept any Host header"
    )
    cors_origin: str = Field(
        default="",
        description="origins of web pages that may send requests, separated by commas, or * for all; by default none",
    )
    no_demo: bool = Field(default=False, description="do not create a demo corpus on a server without corpora")
    no_adapt: bool = Field(default=False, description="refuse requests to adapt encoders to corpora")
    engine: str = Field(
        default="auto",
        description=f"inference engine: {', '.join(ENGINES)}; auto is the fastest on this machine, measured once",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="numeric precision of the engine; auto selects the fastest one that preserves the vectors",
    )
    store: str = Field(
        default="sqlite",
        description=f"storage of corpora: {', '.join(STORES)}, milvus://HOST:PORT[/DATABASE], or the path of a Milvus "
        "Lite, which ends in .db",
    )
    index: Literal["auto", "exact", "cpu", "gpu"] = Field(
        default="auto",
        description="index for dense search: auto builds an approximate index of a large corpus, on the GPU if the "
        "model runs there; cpu and gpu select the device; exact builds no index",
    )
    exact_below: int = Field(
        default=INDEXED_FROM,
        ge=10,
        description="number of passages from which a corpus gets an approximate index; at least 10",
    )
    expected_passages: NonNegativeInt = Field(
        default=0,
        description="expected number of passages of a new corpus on Milvus, which determines the type of its index",
    )
    device: Device = Field(default="auto", description="device that runs the model")
    threads: PositiveInt | None = Field(
        default=None, description="threads of the engine; by default as many as the CPU quota allows"
    )
    default_prompt: str | None = Field(
        default=None,
        description="prompt for requests without a prompt or an input type; not used for reranking and corpora",
    )
    default_prompt_name: str | None = Field(
        default=None, description="name of one of the bundle's prompts to use as --default-prompt"
    )
    token_arrays: Literal["model", "reject"] = Field(
        default="model",
        description="handling of token ids instead of texts: read them as ids of the model, or reject them",
    )
    max_batch_tokens: PositiveInt | None = Field(
        default=None, description="maximum tokens of a batch, including padding; by default chosen by the engine"
    )
    max_queued_tokens: PositiveInt = Field(
        default=1_000_000, description="maximum tokens of all unanswered requests; further requests get 429"
    )
    cache_bytes: NonNegativeInt = Field(
        default=0, description="size in bytes of the cache of vectors and token ids; 0 disables it"
    )
    max_request_texts: PositiveInt = Field(
        default=2048, description="maximum texts in one request; does not apply to uploads of documents"
    )
    max_request_tokens: PositiveInt = Field(
        default=300_000,
        description="maximum tokens in one request, counted after truncation for texts and before truncation for "
        "token ids",
    )
    max_body_bytes: PositiveInt = Field(default=32_000_000, description="maximum bytes of one request body")
    max_received_bytes: PositiveInt = Field(
        default=256_000_000,
        description="maximum bytes of all request bodies in memory, of which one key may use three quarters; "
        "further large bodies get 429",
    )
    max_unread_bytes: PositiveInt = Field(
        default=256_000_000,
        description="maximum bytes of all answers that clients have not read yet; further large answers get 429",
    )
    max_text_bytes: PositiveInt = Field(default=Bounds.text_bytes, description="maximum bytes of one text in UTF-8")
    max_metadata_bytes: PositiveInt = Field(
        default=Bounds.metadata_bytes, description="maximum bytes of one document's metadata as JSON"
    )
    max_upload_documents: PositiveInt = Field(
        default=256,
        description="maximum documents of an upload that is stored before the answer; larger uploads become jobs",
    )
    max_upload_bytes: PositiveInt = Field(
        default=4_000_000_000, description="maximum bytes of one upload, compressed and decompressed"
    )
    max_restore_bytes: PositiveInt = Field(
        default=Bounds.restored_bytes, description="maximum bytes of a restored snapshot after decompression"
    )
    max_tokenizing_characters: PositiveInt = Field(
        default=64_000_000,
        description="maximum characters that wait for the tokenizer; further requests get 429, and a request to a "
        "cross-encoder with more characters gets 413",
    )
    max_search_hits: PositiveInt = Field(
        default=10_000, description="maximum hits of one search request, summed over its queries"
    )
    max_search_characters: PositiveInt = Field(
        default=100_000_000, description="maximum characters in the texts of all hits of one search request"
    )
    key_requests_per_second: Rate | None = Field(
        default=None, description="maximum requests per second of each key without its own limit; by default unlimited"
    )
    key_tokens_per_second: Rate | None = Field(
        default=None, description="maximum tokens per second of each key without its own limit; by default unlimited"
    )
    key_concurrency: PositiveInt | None = Field(
        default=None, description="maximum concurrent requests of each key without its own limit; by default unlimited"
    )
    key_threads: PositiveInt | None = Field(
        default=None,
        description="maximum search threads of each key without its own limit, and as many write threads; by default "
        "half of the CPU quota, but at least 1 and at most 4",
    )
    key_disk_bytes: PositiveInt | None = Field(
        default=None,
        description="maximum bytes on disk of all corpora that a key may access, for each key without its own limit; "
        "by default unlimited",
    )
    key_unread_bytes: PositiveInt = Field(
        default=64_000_000,
        description="maximum bytes of unread answers, and of a single answer, for each key without its own limit",
    )
    key_jobs: PositiveInt = Field(
        default=100,
        description="maximum waiting and running jobs of each key without its own limit; without API keys, the "
        "limit for all callers together",
    )
    max_idempotency_bytes: NonNegativeInt = Field(
        default=32_000_000,
        description="maximum bytes of stored answers for Idempotency-Key, for each API key; the oldest answers are "
        "deleted first",
    )
    body_timeout: PositiveFloat = Field(
        default=10.0, description="maximum seconds for which a client may pause while it sends a request body"
    )
    metrics_corpora: NonNegativeInt | None = Field(
        default=None,
        description="maximum number of corpora that /metrics lists by name; by default 50, or 0 if API keys are "
        "required",
    )
    otlp_endpoint: HttpUrl | None = Field(
        default=None,
        description="OTLP endpoint for traces, such as http://127.0.0.1:4318; by default OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    on: Literal["ray"] | None = Field(
        default=None,
        description="where to serve: ray runs replicas of the encoder on the machines of a Ray "
        "cluster, without corpora",
    )
    ray_address: str | None = Field(
        default=None,
        description="address of the Ray cluster; by default RAY_ADDRESS, else Ray is started on this machine only",
    )
    replicas: PositiveInt = Field(default=1, description="minimum number of replicas on Ray")
    max_replicas: PositiveInt | None = Field(
        default=None, description="maximum number of replicas on Ray when many tokens are queued; by default --replicas"
    )
    log_format: LogFormat = Field(
        default="auto", description="format of the log; auto is pretty on a terminal and json elsewhere"
    )
    drain_seconds: NonNegativeFloat = Field(
        default=20.0, description="seconds to finish admitted requests after SIGTERM"
    )

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        if value not in ENGINES:
            raise ValueError(f"must be one of {', '.join(ENGINES)}")
        return value

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        if value not in STORES and not _is_milvus(value):
            raise ValueError(f"must be one of {', '.join(STORES)}, milvus://HOST:PORT, or a path that ends in .db")
        return value

    @model_validator(mode="after")
    def _a_request_fits_the_queue(self) -> Self:
        if self.max_queued_tokens < self.max_request_tokens:
            raise ValueError(
                "--max-queued-tokens must not be below --max-request-tokens, because the largest requests could never "
                "be admitted"
            )
        return self

    @model_validator(mode="after")
    def _one_default_prompt(self) -> Self:
        if self.default_prompt is not None and self.default_prompt_name is not None:
            raise ValueError("give --default-prompt or --default-prompt-name, not both")
        return self

    @field_validator("cors_origin")
    @classmethod
    def _origins(cls, value: str) -> str:
        value = value.lower()  # browsers send origins in lower case
        bad = next((one for one in _split(value) if one != "*" and not _ORIGIN.fullmatch(one)), None)
        if bad is not None:
            raise ValueError(
                f"{bad!r} is not an origin: give a scheme, a host and optionally a port, such as "
                "https://example.org:8443"
            )
        return value

    @field_validator("bundle")
    @classmethod
    def _folders(cls, value: str) -> str:
        if not value.strip(os.pathsep):
            raise ValueError("must name a folder")
        return value

    @property
    def on_milvus(self) -> bool:
        """True if the corpora are on Milvus."""
        return _is_milvus(self.store)

    @property
    def bundles(self) -> tuple[Path, ...]:
        """Folders of the served encoders. The folder of the default encoder is first."""
        return tuple(Path(folder) for folder in self.bundle.split(os.pathsep) if folder)

    @property
    def adapted(self) -> Path:
        """Folder of the encoders that jobs have adapted to corpora."""
        return self.data / "adapted"

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """Origins of web pages that may send requests."""
        return _split(self.cors_origin)

    @property
    def named_corpora(self) -> int:
        """Maximum number of corpora that have their own label in the metrics."""
        if self.metrics_corpora is not None:
            return self.metrics_corpora
        return 0 if self.api_keys_file else NAMED_CORPORA

    @property
    def bounds(self) -> Bounds:
        """Limits on documents and on restored corpora."""
        return Bounds(
            text_bytes=self.max_text_bytes,
            metadata_bytes=self.max_metadata_bytes,
            restored_bytes=self.max_restore_bytes,
        )

    @property
    def key_limits(self) -> Limits:
        """Default limits of API keys. A key can have its own value for each limit."""
        return Limits(
            requests_per_second=self.key_requests_per_second,
            tokens_per_second=self.key_tokens_per_second,
            concurrency=self.key_concurrency,
            threads=self.key_threads or min(max(cpus.available() // 2, 1), 4),
            disk_bytes=self.key_disk_bytes,
            unread_bytes=self.key_unread_bytes,
            jobs=self.key_jobs,
        )


def _is_milvus(store: str) -> bool:
    return store.startswith(("milvus://", "milvus+tls://")) or store.endswith(".db")


def _split(origins: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in origins.split(",") if one.strip())


def read_settings(arguments: Sequence[str], others: Iterable[str] = ()) -> Settings:
    """Read the settings. Command-line options have priority over environment variables.

    `others` are options that the command accepts besides the settings. The error message for an unknown option suggests
    the most similar setting or option of `others`.

    Raises:
        SettingsError: an option is unknown, or its value is not valid; the message names the option.
        SystemExit: after `--help`, with the exit status 0.
    """
    try:
        return Settings(_cli_parse_args=_with_one_bundle(arguments))  # type: ignore[call-arg]
    except ValidationError as error:
        first = error.errors()[0]
        option = f"{_flag(str(first['loc'][0]))}: " if first["loc"] else ""
        raise SettingsError(f"{option}{first['msg'].removeprefix('Value error, ')}") from None
    except pydantic_settings.SettingsError as error:
        message = str(error).removeprefix("error parsing CLI: ")
        raise SettingsError(f"{message}{near_option(message, [*map(_flag, Settings.model_fields), *others])}") from None


def parser_of_settings() -> ArgumentParser:
    """Return a parser with all settings as options. It is only for reading the help text and the options."""
    parser: ArgumentParser = CliSettingsSource(Settings).root_parser
    return parser


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _with_one_bundle(arguments: Sequence[str]) -> list[str]:
    """Merge all `--bundle` options into one, because pydantic-settings reads only the last of several options."""
    parser = Parser("isosphere serve", add_help=False, allow_abbrev=False, passes_on=True)
    parser.add_argument("--bundle", action="append", default=[])
    given, others = parser.parse_known_args(arguments)
    return [*others, *(["--bundle", os.pathsep.join(given.bundle)] if given.bundle else [])]

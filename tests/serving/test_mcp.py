"""Tests of `isosphere mcp` by the SDK's own client, over stdio and HTTP, with a real server and keys."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from isosphere.mcp_server.__main__ import main
from isosphere.mcp_server.api import Api
from isosphere.mcp_server.tools import MOST_CHARACTERS, server_of
from tests.pages import blocks
from tests.serving.conftest import Launcher

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "mcp.md"
COMMAND = (sys.executable, "-m", "isosphere", "mcp")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
DOCUMENTS = [
    {"id": "cats/1", "text": "cats sleep all day", "metadata": {"year": 2020, "lang": "en"}},
    {"id": "dogs", "text": "dogs bark at night", "metadata": {"year": 2024, "lang": "en"}},
    {"id": "long", "text": "whales " * 1000, "metadata": {"year": 2024, "lang": "en"}},
]


class Servers:
    """A server with a corpus, and `isosphere mcp` for it on a port."""

    def __init__(self, folder: Path, launch: Launcher) -> None:
        self.folder = folder
        self.key, self.other_key = (self._new_key(folder, *scope) for scope in ((), ("--corpora", "other")))
        self.isosphere = launch(
            "--api-keys-file", str(folder / "keys.json"), "--max-upload-documents", str(len(DOCUMENTS))
        )
        self.isosphere.client.headers["authorization"] = f"Bearer {self.key}"
        self.post("/corpora/notes/documents", {"documents": DOCUMENTS})
        self.url = self.isosphere.address
        self.process, self.mcp = self.listening()

    def post(self, path: str, body: Any) -> None:
        self.isosphere.client.put("/corpora/notes", json={"description": "Animals"}).raise_for_status()
        self.isosphere.client.post(path, json=body).raise_for_status()

    def _new_key(self, folder: Path, *options: str) -> str:
        added = ["add", options[-1] if options else "all", "--scopes", "read,write", *options]
        command = [sys.executable, "-m", "serving", "keys", *added, "--api-keys-file", str(folder / "keys.json")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def listening(self, host: str = "127.0.0.1") -> tuple[subprocess.Popen[str], str]:
        command = [*COMMAND, "--url", self.url, "--http", "--host", host, "--port", "0"]
        environment = {**os.environ, **ENVIRONMENT, "ISOSPHERE_API_KEY": self.key}
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr
        line = process.stderr.readline()
        found = re.fullmatch(rf"isosphere mcp: (http://{re.escape(host)}:\d+/mcp)\n", line)
        assert found, line
        return process, found[1]

    def over_stdio(self, *options: str, key: str | None = None) -> StdioServerParameters:
        environment = ENVIRONMENT | ({"ISOSPHERE_API_KEY": key} if key else {})
        return StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options], env=environment)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("mcp")
    launcher = Launcher(folder)
    servers = Servers(folder, launcher)
    yield servers
    servers.process.terminate()
    servers.process.communicate(timeout=60)
    for running in launcher.started:
        running.kill()


@asynccontextmanager
async def with_key(url: str, key: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def without_a_process(servers: Servers) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(base_url=servers.url, trust_env=False) as http,
        Client(server_of(Api(http, servers.key, key_of_caller=False), writes=True)) as client,
    ):
        yield client


@pytest.fixture(params=["stdio", "http", "http with a handshake"])
def connect(request: pytest.FixtureRequest, servers: Servers) -> Any:
    if request.param == "stdio":
        return lambda: Client(servers.over_stdio("--url", servers.url, key=servers.key))
    return lambda: Client(servers.mcp, mode="legacy" if "handshake" in request.param else "auto")


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert json.loads(_text(answer)) == answer.structured_content
    return answer.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return _text(answer)


def _text(answer: CallToolResult) -> str:
    (content,) = answer.content
    assert isinstance(content, TextContent)
    return content.text


def test_an_assistant_lists_searches_and_reads(connect: Any) -> None:
    async def main() -> None:
        async with connect() as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == {"search", "fetch", "list_corpora"}
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            assert all(tool.description and tool.output_schema for tool in tools)

            (corpus,) = (await ask(client, "list_corpora"))["corpora"]
            assert (corpus["name"], corpus["description"], corpus["documents"]) == ("notes", "Animals", 3)
            assert corpus["state"] == "ready" and corpus["fields"] is None
            (described,) = (await ask(client, "list_corpora", corpus="notes"))["corpora"]
            fields = {field["field"]: field for field in described["fields"]}
            assert (fields["year"]["least"], fields["lang"]["values"]) == (2020, ["en"])

            found = await ask(client, "search", query="cats sleep", corpus="notes", limit=2)
            assert len(found["hits"]) == 2 and found["warnings"] == []
            best = found["hits"][0]
            assert (best["id"], best["text"]) == ("cats/1", "cats sleep all day")
            assert best["metadata"] == {"year": 2020, "lang": "en"} and best["score"] > found["hits"][1]["score"]
            read = await ask(client, "fetch", corpus="notes", id=best["id"])
            assert read == DOCUMENTS[0] | {"expires_at": None}

    asyncio.run(main())


def test_filters_warnings_and_long_texts(servers: Servers) -> None:
    async def main() -> None:
        async with Client(servers.mcp) as client:
            new = await ask(client, "search", query="cats", corpus="notes", filter={"year": {"$gte": 2021}})
            assert {hit["id"] for hit in new["hits"]} == {"dogs", "long"}
            (long,) = [hit["text"] for hit in new["hits"] if hit["id"] == "long"]
            assert len(long) == MOST_CHARACTERS and long.endswith("…")
            assert (await ask(client, "fetch", corpus="notes", id="long")) == DOCUMENTS[2] | {"expires_at": None}
            (warning,) = (await ask(client, "search", query="a", corpus="notes", filter={"yaer": 1}))["warnings"]
            assert "Did you mean 'year'?" in warning

    asyncio.run(main())


def test_an_error_says_what_to_do(servers: Servers) -> None:
    async def main() -> None:
        async with Client(servers.mcp) as client:
            missing = await refused(client, "search", query="a", corpus="nowhere")
            assert "no corpus 'nowhere'" in missing and "`list_corpora` lists" in missing
            assert "`search` returns" in await refused(client, "fetch", corpus="notes", id="nobody")
            for dots in ("..", "."):
                assert f"must not be {dots!r}" in await refused(client, "fetch", corpus="notes", id=dots)
            assert "is not a corpus name" in await refused(client, "fetch", corpus="..", id="dogs")
            wrong = await refused(client, "search", query="a", corpus="notes", filter={"year": {"gte": 1}})
            assert "filter.year.gte: did you mean $gte?" in wrong
            assert "limit" in await refused(client, "search", query="a", corpus="notes", limit=0)
            assert "at least 1 character" in await refused(client, "fetch", corpus="notes", id="")

    asyncio.run(main())


def test_a_client_over_http_may_send_its_own_key(servers: Servers) -> None:
    async def main() -> None:
        async with with_key(servers.mcp, servers.other_key) as client:
            assert await ask(client, "list_corpora") == {"corpora": []}
            assert "no access to the corpus 'notes'" in await refused(client, "search", query="a", corpus="notes")
        async with with_key(servers.mcp, "wrong") as client:
            assert "ISOSPHERE_API_KEY" in await refused(client, "list_corpora")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "says"), [("{url}", "ISOSPHERE_API_KEY"), ("http://127.0.0.1:9", "`isosphere serve` starts one")]
)
def test_without_a_key_or_a_server(servers: Servers, url: str, says: str) -> None:
    async def main() -> None:
        async with Client(servers.over_stdio("--url", url.format(url=servers.url))) as client:
            assert says in await refused(client, "list_corpora")

    asyncio.run(main())


def test_an_answer_of_another_program_is_no_result(servers: Servers) -> None:
    async def main() -> None:
        async with Client(servers.over_stdio("--url", servers.mcp.removesuffix("/mcp"))) as client:
            assert "not as an Isosphere server does" in await refused(client, "list_corpora")

    asyncio.run(main())


def test_the_configuration_of_the_page_works(servers: Servers) -> None:
    (configuration,) = blocks(PAGE, "json")
    program = json.loads(configuration.code)["mcpServers"]["isosphere"]
    assert program["command"] == "isosphere" and program["env"] == {"ISOSPHERE_API_KEY": "your-key"}
    verb, *options = [servers.url if word.startswith("http://") else word for word in program["args"]]

    async def main() -> None:
        async with Client(servers.over_stdio(*options, key=servers.key)) as client:
            assert [one["name"] for one in (await ask(client, "list_corpora"))["corpora"]] == ["notes"]

    assert verb == COMMAND[-1]
    asyncio.run(main())


def test_pages_of_other_origins_are_refused(servers: Servers) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream", "origin": "https://elsewhere.example"}
    assert httpx2.post(servers.mcp, json=body, headers=headers, trust_env=False).status_code == 403


def test_tools_that_write_are_there_if_asked_for(servers: Servers) -> None:
    async def main() -> None:
        asked = servers.over_stdio("--url", servers.url, "--write", key=servers.key)
        async with Client(asked) as client:
            tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
            assert {name for name, hints in tools.items() if hints and not hints.read_only_hint} == {"store", "delete"}
            birds: dict[str, Any] = {"id": "birds/1", "text": "birds sing", "metadata": {"year": 2025}}
            birds["expires_at"] = "2999-01-31T08:30:00Z"
            assert await ask(client, "store", corpus="notes", documents=[birds]) == {"ids": ["birds/1"]}
            assert await ask(client, "fetch", corpus="notes", id="birds/1") == birds
            assert await ask(client, "delete", corpus="notes", id="birds/1") == {"id": "birds/1"}
            assert "birds/1" in await refused(client, "delete", corpus="notes", id="birds/1")

    asyncio.run(main())


def test_a_new_document_is_stored_as_it_was_sent_or_refused(servers: Servers) -> None:
    async def main() -> None:
        async with without_a_process(servers) as client:
            bees: dict[str, Any] = {"id": "bees", "text": "bees hum"}
            for beside in ({"year": 2024}, {"vector": [1.0]}):
                error = await refused(client, "store", corpus="notes", documents=[bees | beside])
                assert next(iter(beside)) in error
            assert "bees" in await refused(client, "fetch", corpus="notes", id="bees")

    asyncio.run(main())


def test_an_upload_that_becomes_a_job_is_stored_on_return(servers: Servers) -> None:
    ids = [f"more/{i}" for i in range(len(DOCUMENTS) + 1)]
    documents: list[dict[str, Any]] = [{"id": id, "text": f"ants {id}"} for id in ids]

    async def main() -> None:
        async with without_a_process(servers) as client:
            wrong = [*documents[:-1], documents[-1] | {"expires_at": "tomorrow"}]
            assert "expires_at" in await refused(client, "store", corpus="notes", documents=wrong)
            assert await ask(client, "store", corpus="notes", documents=documents) == {"ids": ids}
            for one in documents:
                assert (await ask(client, "fetch", corpus="notes", id=one["id"]))["text"] == one["text"]
                await ask(client, "delete", corpus="notes", id=one["id"])

    asyncio.run(main())


def test_a_corpus_of_own_vectors_is_searched_by_words(servers: Servers) -> None:
    client = servers.isosphere.client
    client.put("/corpora/own", json={"vectors": "own", "dim": 2}).raise_for_status()
    documents = [{"id": word, "text": f"{word} sleep", "vector": [1, 0]} for word in ("cats", "dogs")]
    client.post("/corpora/own/documents", json=documents).raise_for_status()

    async def main() -> None:
        async with without_a_process(servers) as client:
            assert [hit["id"] for hit in (await ask(client, "search", query="dogs", corpus="own"))["hits"]] == ["dogs"]

    try:
        asyncio.run(main())
    finally:
        client.delete("/corpora/own").raise_for_status()


def test_a_call_over_http_may_be_as_large_as_a_request_of_the_server(servers: Servers) -> None:
    async def main() -> None:
        async with Client(servers.mcp) as client:
            assert "5000000 bytes" in await refused(client, "search", query="a" * 5_000_000, corpus="notes")

    asyncio.run(main())


def test_every_loopback_address_answers_at_the_url_that_it_shows(servers: Servers) -> None:
    process, url = servers.listening("127.0.0.2")

    async def main() -> None:
        async with Client(url) as client:
            assert (await ask(client, "list_corpora"))["corpora"]

    try:
        asyncio.run(main())
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_server_that_is_slow_is_not_said_to_be_missing() -> None:
    def slow(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("", request=request)

    async def main() -> None:
        async with (
            httpx2.AsyncClient(base_url="http://eve:s3cret@127.0.0.1:9", transport=httpx2.MockTransport(slow)) as http,
            Client(server_of(Api(http, None, key_of_caller=False))) as client,
        ):
            said = await refused(client, "list_corpora")
            assert "http://127.0.0.1:9" in said and "may still do what was asked" in said

    asyncio.run(main())


def test_tools_take_an_alias(servers: Servers) -> None:
    servers.isosphere.client.put("/aliases/live", json={"corpus": "notes"}).raise_for_status()

    async def main() -> None:
        async with Client(servers.over_stdio("--url", servers.url, "--write", key=servers.key)) as client:
            assert (await ask(client, "list_corpora", corpus="live"))["corpora"][0]["name"] == "notes"
            assert (await ask(client, "search", query="cats sleep", corpus="live"))["hits"][0]["id"] == "cats/1"
            bees = {"id": "bees", "text": "bees hum", "metadata": {}}
            assert await ask(client, "store", corpus="live", documents=[bees]) == {"ids": ["bees"]}
            assert (await ask(client, "fetch", corpus="live", id="bees"))["text"] == "bees hum"
            assert await ask(client, "delete", corpus="live", id="bees") == {"id": "bees"}

    asyncio.run(main())


def test_an_address_for_others_needs_the_key_of_each_caller() -> None:
    async def main() -> None:
        async with (
            httpx2.AsyncClient(base_url="http://127.0.0.1:9") as http,
            Client(server_of(Api(http, None, key_of_caller=True))) as client,
        ):
            assert "needs a key" in await refused(client, "list_corpora")

    asyncio.run(main())


def test_an_address_for_others_takes_no_key_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--http", "--host", "0.0.0.0", "--port", "0", "--key", "mine"]) == 2
    assert "everyone who reaches this address would use your key" in capsys.readouterr().err


def test_a_port_in_use_and_a_wrong_url(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--http", "--port", str(port)]) == 1
    assert capsys.readouterr().err.startswith(f"isosphere mcp: --host 127.0.0.1 --port {port}: Address already in use")
    with pytest.raises(SystemExit, match="2"):
        main(["--url", "localhost:8080"])
    assert "not an address such as http://" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--http", "--port", "70000"])
    assert "'70000' is not a port from 0 to 65535" in capsys.readouterr().err

"""Prompts before texts: from the request, from the bundle by name or role, or the server's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.prompts import DOCUMENT, QUERY, of_role
from serving.bounds import check_text
from serving.embeddings import EmbedOptions, Role
from serving.errors import Invalid
from serving.ports import EngineError
from serving.settings import Settings

NAMES: Mapping[Role, tuple[str, ...]] = {
    "search_query": QUERY,
    "search_document": DOCUMENT,
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""Names that bundles use for the prompts of a role."""


MAX_BYTES = 10_000
"""Maximum bytes of a prompt, which is repeated before every text."""


class Prompts:
    """A bundle's prompts by name, and the server's default.

    Raises:
        EngineError: the bundle lacks the default prompt.
    """

    def __init__(self, known: Mapping[str, str], settings: Settings) -> None:
        self._known = known
        name = settings.default_prompt_name
        if name is not None and name not in known:
            raise EngineError(f"--default-prompt-name {name}: the bundle has no such prompt (it has: {self._names})")
        self._default = settings.default_prompt or (known[name] if name is not None else "")

    def before(self, options: EmbedOptions) -> str:
        """Return the prompt for each text.

        Raises:
            Invalid: the name is unknown, two prompts are given, or the prompt is not Unicode.
            TooLarge: the prompt has more than `MAX_BYTES`.
        """
        if options.prompt is not None and options.prompt_name is not None:
            raise Invalid("give prompt or prompt_name, not both", field="prompt")
        if options.prompt is not None:
            check_text(options.prompt, MAX_BYTES, "prompt")
            return options.prompt
        if options.prompt_name is not None:
            return self._named(options.prompt_name)
        own = of_role(self._known, NAMES[options.role] if options.role else ())
        if own is not None:
            return own
        return "" if options.by_the_bundle else self._default

    def of_a_search(self, texts: int, options: EmbedOptions) -> list[str]:
        """Return the prompt for a query, followed by the prompts for its texts.

        Raises:
            Invalid, TooLarge: as for `before`.
        """
        asking = self.before(replace(options, role="search_query"))
        answering = self.before(replace(options, role="search_document"))
        return [asking, *[answering] * texts]

    @property
    def _names(self) -> str:
        return ", ".join(sorted(self._known)) or "none"

    def _named(self, name: str) -> str:
        if name not in self._known:
            raise Invalid(f"the model has no prompt {name!r} (it has: {self._names})", field="prompt_name")
        return self._known[name]

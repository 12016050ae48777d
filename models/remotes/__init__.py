"""Remote storage of bundles: the Hugging Face hub, or a folder or URL that fsspec supports."""

from __future__ import annotations

from pathlib import Path

from models.remotes.base import Remote, without_user

HUB = "hf://"


def open_remote(
    place: str, *, revision: str | None = None, private: bool = False, message: str | None = None
) -> Remote:
    """Return the remote at `place`: `hf://org/name[@revision]`, `org/name[@revision]`, a URL or the path of a folder.

    `org/name` is on the hub, unless the working directory has a folder `org`. `./org/name` is always a path. The other
    arguments are only for the hub: `revision` is a branch or commit, `private` makes a new repository private, and
    `message` is the message of the commit.

    Raises:
        ValueError: the scheme of a URL is unknown or its driver is not installed, a place on the hub contains a user or
            a token, the revision is given twice, or an option for the hub is given for another place.
        RemoteError: the server of a URL does not answer, or refuses access.
    """
    if repository := _on_the_hub(place):
        from models.remotes.hub import Hub

        name, _, at = repository.partition("@")
        if ":" in name:
            raise ValueError(f"{HUB}…: must not contain a user or a token; set them with `hf auth login` or HF_TOKEN")
        if at and revision:
            raise ValueError(f"{place}: contains a revision, but --revision {revision} is also given")
        return Hub(name, revision=at or revision, private=private, message=message)
    given = {"--revision": revision, "--private": private, "--message": message}
    if foreign := [option for option, value in given.items() if value]:
        raise ValueError(f"{foreign[0]}: works only with the hub, and {without_user(place)} is not on the hub")
    from models.remotes.filesystem import Filesystem

    return Filesystem(place)


def _on_the_hub(place: str) -> str | None:
    """Return `place` as `org/name[@revision]`, without `hf://`. Return None if `place` is not on the hub."""
    if place.startswith(HUB):
        return place.removeprefix(HUB)
    name = place.partition("@")[0]
    local = "://" in place or name.count("/") != 1 or name.startswith((".", "~", "/", "artifacts/", "runs/"))
    return None if local or Path(name).parent.is_dir() else place

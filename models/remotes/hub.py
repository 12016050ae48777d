"""A model repository on the Hugging Face hub, or on another server with its API (`HF_ENDPOINT`)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, but not re-exported

from models.bundle.bundle import MOST_JSON_BYTES, sha256
from models.remotes.base import RemoteError, as_remote_error, too_large

OF_THE_HUB = {".gitattributes"}
"""Names of files that the hub itself creates in every repository."""


class Hub:
    """A hub repository at a revision. All reads use the same commit, and each call of `put` makes one commit."""

    def __init__(
        self, repository: str, *, revision: str | None = None, private: bool = False, message: str | None = None
    ):
        """Check the repository's name, without contacting the hub.

        If `private` is true, `put` creates a missing repository as private, and refuses a public repository.

        Raises:
            ValueError: the name of the repository is not legal.
        """
        validate_repo_id(repository)
        self._repository, self._revision = repository, revision
        self._private, self._message = private, message
        self._api = HfApi()
        self._commit: str | None = None

    def __str__(self) -> str:
        return f"hf://{self._repository}" + (f"@{self._revision}" if self._revision else "")

    def files(self) -> set[str]:
        """Return the names of the repository's files, without those that the hub itself creates."""
        with as_remote_error(self):
            return set(self._tree)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if the file does not exist.

        The result is also None if the repository is missing or not readable.
        """
        with as_remote_error(self):
            if path not in self._tree:
                return None
            if self._tree[path].size > MOST_JSON_BYTES:
                raise too_large(self, path)
            with TemporaryDirectory() as folder:
                self.fetch(path, Path(folder))
                return (Path(folder) / path).read_bytes()

    def fetch(self, path: str, folder: Path) -> None:
        """Download a file without the hub's cache, because the cache would keep a damaged file."""
        with as_remote_error(self, fetching=True):
            if path not in self._tree:
                raise RemoteError(f"{self}: {path}: missing, but the manifest lists it")
            self._api.hf_hub_download(self._repository, path, revision=self._at, local_dir=folder)

    def holds(self, path: str, file: Path) -> bool:
        """Return whether the remote file equals `file`, by comparing hashes.

        The hub reports the SHA-256 of large files, and git's hash of small files.
        """
        with as_remote_error(self):
            stored = self._tree[path]
            return stored.lfs.sha256 == sha256(file) if stored.lfs else stored.blob_id == _git_hash(file)

    def begins(self, _path: str, _file: Path, /) -> bool:
        """Return False: no remote file is the beginning of a local file, because commits have only complete files."""
        return False

    def put(self, folder: Path, paths: Sequence[str], *, removed: Collection[str]) -> None:
        """Upload files in one commit, or fail if someone else has committed since this object read the repository.

        The repository and the branch are created if they are missing. A new branch begins as a copy of the default
        branch. In this case, the commit also deletes the copied files that are not uploaded.

        Raises:
            RemoteError: the hub refuses the commit, or the repository is public although it should be private.
        """
        with as_remote_error(self):
            if new := self._commit is None:
                self._api.create_repo(self._repository, private=self._private, exist_ok=self._revision is not None)
            if self._private and not self._api.model_info(self._repository).private:
                raise RemoteError(
                    f"{self}: the repository is public; make it private on the hub, or leave out --private"
                )
            if new:
                removed = self._begun()
            made = self._api.create_commit(
                self._repository,
                [
                    *(CommitOperationAdd(path, folder / path) for path in paths),
                    *(CommitOperationDelete(path) for path in removed if path not in paths),
                ],
                commit_message=self._message or f"Publish {folder.name}",
                revision=self._revision,
                parent_commit=self._at,
            )
            self._look_again(made.oid)

    def _begun(self) -> Collection[str]:
        """Create the branch to upload to, unless it is the default branch. Return the names of the files in it.

        A created branch begins with the files of the default branch, because it is a copy of the default branch.

        Raises:
            RemoteError: someone else created the branch in the meantime, so it is not a copy of the default branch.
        """
        if self._revision:
            self._api.create_branch(self._repository, branch=self._revision, exist_ok=True)
        self._look_again()
        if self._at != self._api.model_info(self._repository).sha:
            raise RemoteError(
                f"{self}: someone else created this branch in the meantime; check its content, and publish again"
            )
        return self._tree.keys()

    def _look_again(self, commit: str | None = None) -> None:
        self._commit = commit
        del self._tree

    @property
    def _at(self) -> str:
        """Commit of the revision. The hub is asked for it only once."""
        if self._commit is None:
            self._commit = self._api.model_info(self._repository, revision=self._revision).sha
        assert self._commit is not None, "the hub gives a commit of every repository"
        return self._commit

    @cached_property
    def _tree(self) -> dict[str, RepoFile]:
        try:
            listed = list(self._api.list_repo_tree(self._repository, recursive=True, revision=self._at))
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return {}
        return {one.path: one for one in listed if isinstance(one, RepoFile) and one.path not in OF_THE_HUB}


def _git_hash(file: Path) -> str:
    """Return the SHA-1 hash by which git names a blob with the content of `file`.

    The format of a blob is described at https://git-scm.com/book/en/v2/Git-Internals-Git-Objects.
    """
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

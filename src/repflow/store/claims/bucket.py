"""A study on an object store (S3, Google Cloud Storage, Azure ... through fsspec) instead of a shared folder.

    STORE/STUDY/CELL/...                             a finished run
    STORE/STUDY/.repflow/placed/CELL                 says that all of its files are there
    STORE/STUDY/.repflow/claims/CELL/000001 ...      ledger of the cell; each entry by one conditional put
    STORE/STUDY/.repflow/work/CELL@000001-TOKEN/...  files of a run whose `done` is being written

Runs are worked on in a local folder. Before a worker writes `done` it uploads the whole run, so that any other can
bring it to its place if this one dies; whoever has lost its claim has uploaded in vain.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, MissingExtraError, StoreError, teach, words_of
from repflow.store.claims.attempt import OWN, WORK, Attempts, stored_files
from repflow.store.claims.ledger import Entry
from repflow.store.disk import TMP, make_folder, naming_path

PLACED = "placed"
CHECK = "check"


class BucketPlace:
    """Small objects by key; see `repflow.store.claims.place.Place`.

    Args:
        url: of the folder, such as s3://BUCKET/RUNS/STUDY/.repflow.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        self.fs: Any
        with naming_store(url):
            self.fs, self.root = fsspec.url_to_fs(url, use_listings_cache=False)

    def _path(self, key: str) -> str:
        return self.root if key in ("", ".") else f"{self.root}/{key}"

    def create(self, key: str, data: bytes) -> bool:
        """Put an object on the condition that there is none."""
        with naming_store(self._path(key)):
            try:
                self.fs.pipe_file(self._path(key), data, mode="create")
            except FileExistsError:
                return self.read(key) == data  # an answer was lost, and the library asked again
        return True

    def write(self, key: str, data: bytes) -> None:
        """Put an object."""
        with naming_store(self._path(key)):
            self.fs.pipe_file(self._path(key), data)

    def read(self, key: str) -> bytes | None:
        """Get an object."""
        with naming_store(self._path(key)):
            try:
                content: bytes = self.fs.cat_file(self._path(key))
            except FileNotFoundError:
                return None
        return content

    def names(self, key: str) -> list[str]:
        """Names below a prefix, as far as the next slash."""
        with naming_store(self._path(key)):
            try:
                listed = self.fs.ls(self._path(key), detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = {str(path).rstrip("/").rpartition("/")[2] for path in listed}
        return sorted(name for name in names if name and not name.startswith("."))

    def delete(self, key: str) -> None:
        """Delete an object."""
        with naming_store(self._path(key)), suppress(FileNotFoundError):
            self.fs.rm_file(self._path(key))

    def files(self, key: str) -> list[str]:
        """Keys of all objects below a prefix, relative to it."""
        base = self._path(key).lstrip("/")
        with naming_store(base):
            return sorted(str(path).lstrip("/").removeprefix(f"{base}/") for path in self.fs.find(self._path(key)))

    def upload(self, source: Path, key: str) -> None:
        """Put a file."""
        with naming_store(self._path(key)):
            self.fs.put_file(str(source), self._path(key))

    def download(self, key: str, target: Path) -> None:
        """Get a file."""
        make_folder(target.parent)
        with naming_path(target, 0), naming_store(self._path(key)):
            self.fs.get_file(self._path(key), str(target))

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the store's side."""
        with naming_store(self._path(target)):
            self.fs.cp_file(self._path(source), self._path(target))


@contextmanager
def naming_store(path: str) -> Iterator[None]:
    """Turn what a store's library raises into one error that names the object; missing and existing files pass."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError, StoreError, InputError):
        raise
    except Exception as error:  # every store brings a library with errors of its own
        remedy = "check the address, your credentials and the network; what is stored is intact"
        raise StoreError(teach(f"an answer of the store for {path}", words_of(error), remedy)) from error


class BucketResults:
    """Work in a local folder, results on the store and, where a cell was worked on or asked for, also here.

    Args:
        study: place of the study, whose runs are folders in it.
        local: work on the cells here.
        wholes: runs that shares belong to, by share; a share is not missing once its run is whole.
    """

    def __init__(self, study: BucketPlace, local: Attempts, wholes: Mapping[str, str]) -> None:
        self.study, self.local, self._wholes = study, local, wholes

    def placed(self, cell: str) -> bool:
        """Whether all files of a finished run are on the store."""
        names = [cell, *([self._wholes[cell]] if cell in self._wholes else [])]
        return any(self.study.read(f"{OWN}/{PLACED}/{name}") is not None for name in names)

    def begin(self, cell: str, claim: Entry, before: Entry | None) -> Path:
        """A local folder; what another worker of this machine had stored is taken over."""
        return self.local.begin(cell, claim, before)

    def progress(self, entry: Entry | None) -> str:
        """How far the work has come, where that can be seen from here."""
        return self.local.progress(entry)

    def stage(self, claim: Entry) -> None:
        """Upload a finished run, before it is said to be done."""
        source = self.local.work / claim.attempt
        for path in stored_files(source):
            self.study.upload(path, f"{OWN}/{WORK}/{claim.attempt}/{path.relative_to(source)}")

    def place(self, done: Entry) -> bool:
        """Copy a finished run to its place, and then say that it is there."""
        source = f"{OWN}/{WORK}/{done.attempt}"
        files = self.study.files(source)
        if not files:
            return self.placed(done.cell)
        target = self.local.spot(done.cell).target.relative_to(self.local.folder)
        try:
            for file in files:
                name, _, rest = file.partition("/")
                place = target if name == done.cell else target.with_name(name)
                self.study.copy(f"{source}/{file}", f"{place}/{rest}" if rest else str(place))
        except FileNotFoundError:  # another worker was faster, and has cleared up
            return self.placed(done.cell)
        self.study.write(f"{OWN}/{PLACED}/{done.cell}", b"")
        self._clear(source, files)
        if (self.local.work / done.attempt).is_dir():
            self.local.place(done)
        return True

    def fetch(self, cell: str) -> None:
        """Bring a finished run here, unless it is; what lies beside it comes too."""
        spot = self.local.spot(cell)
        if spot.taken or not self.placed(cell):
            return
        own = spot.target.relative_to(self.local.folder)
        beside = [name for name in self.study.names(str(own.parent)) if name.startswith(f"{cell}.")]
        shares = {share for share, whole in self._wholes.items() if whole == cell}
        for name in [*(name for name in beside if name not in shares), own.name]:
            self._bring(own.with_name(name))

    def _bring(self, place: Path) -> None:
        half = self.local.work / f"{place.name}.{secrets.token_hex(4)}{TMP}"
        for file in self.study.files(str(place)):
            self.study.download(f"{place}/{file}", half / file)
        target = self.local.folder / place
        make_folder(target.parent)
        with suppress(OSError):  # another process here has brought it
            half.rename(target)
        shutil.rmtree(half, ignore_errors=True)

    def drop(self, cell: str) -> None:
        """Delete a run, and what lies beside it, from the store and here."""
        self.local.drop(cell)
        own = self.local.spot(cell).target.relative_to(self.local.folder)
        for name in [own.name, *(name for name in self.study.names(str(own.parent)) if name.startswith(f"{cell}."))]:
            self._clear(str(own.with_name(name)), self.study.files(str(own.with_name(name))))

    def _clear(self, prefix: str, files: list[str]) -> None:
        for file in files:
            self.study.delete(f"{prefix}/{file}")

    def discard(self, attempt: str, *, only_empty: bool = False) -> None:
        """Delete the work under a claim."""
        self.local.discard(attempt, only_empty=only_empty)
        if attempt and not only_empty:
            self._clear(f"{OWN}/{WORK}/{attempt}", self.study.files(f"{OWN}/{WORK}/{attempt}"))

    def sweep(self) -> None:
        """Delete what is left here of work on finished cells."""
        self.local.sweep()

    def tidy(self) -> None:
        """Remove the local folder of work once nothing is in it."""
        self.local.tidy()


def check_store(url: str) -> None:
    """Refuse an address that is none, a missing package, a store that cannot be reached or has no conditional puts.

    Raises:
        InputError: says which.
        StoreError: the store does not answer.
    """
    if importlib.util.find_spec("fsspec") is None:
        raise MissingExtraError(teach("fsspec for --store", "no package fsspec", "`pip install 'repflow[s3]'`"))
    if "://" not in url:
        raise InputError(teach("--store URL", repr(url), "write such as s3://BUCKET/RUNS; a folder is --out"))
    import fsspec

    try:
        fsspec.url_to_fs(url)
    except ImportError as error:
        remedy = "`pip install 'repflow[s3]'` for S3, gcsfs for Google, adlfs for Azure"
        raise MissingExtraError(teach(f"a package for {url}", words_of(error), remedy)) from None
    except ValueError as error:
        raise InputError(teach("--store URL of a store", words_of(error), "write such as s3://BUCKET/RUNS")) from None
    place, key = BucketPlace(url), f"{OWN}/{CHECK}-{secrets.token_hex(6)}"
    try:
        first, second = place.create(key, b"1"), place.create(key, b"2")
    except FileNotFoundError as error:
        raise InputError(teach(f"a bucket for {url}", words_of(error), "create the bucket")) from None
    place.delete(key)
    if not first or second:
        got = "one that overwrites it"
        raise InputError(teach(f"a store at {url} that refuses a second object of one name", got, "use another store"))

"""Downloads from a server on loopback: what arrives is checked before it is taken, and no server is waited for long."""

import hashlib
import io
import os
import socket
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from rich.console import Console

from partwise.data import CATALOGUE, load
from partwise.data.readers import cifar, download
from partwise.data.readers.entry import DataEntry, Download
from partwise.data.readers.published import IDX
from partwise.errors import ConfigError, DataError
from tests.support.files import read_tree, refusal, write_tree

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers each path as `answers` says; `asked` are the paths that were asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.done = Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                served.answers.get(self.path, lambda handler: handler.send_error(404))(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"

    def offer(self, name: str, content: bytes, announced: int | None = None) -> Download:
        """A file on this server."""
        self.answers[f"/{name}"] = partial(send, content=content, announced=announced)
        return Download(f"{self.address}/{name}", len(content), hashlib.md5(content).hexdigest())


def send(handler: BaseHTTPRequestHandler, content: bytes, announced: int | None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content) if announced is None else announced))
    handler.end_headers()
    handler.wfile.write(content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    result = Server()
    thread = Thread(target=result.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield result
    result.done.set()
    result.http.shutdown()
    result.http.server_close()
    thread.join()


@pytest.fixture
def offer(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DataEntry]:
    """A named data set whose downloads lie on the server."""

    def offered(name: str, *files: Download) -> DataEntry:
        monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], downloads=files))
        return CATALOGUE[name]

    return offered


def idx_files(folder: Path, write_idx: Callable[..., None]) -> dict[str, bytes]:
    write_idx(folder, brightness=5, compressed=True)
    return {f"{file}.gz": (folder / f"{file}.gz").read_bytes() for file in IDX}


def test_a_missing_set_is_fetched_only_when_asked(
    nowhere: Path,
    server: Server,
    offer: Callable[..., DataEntry],
    write_idx: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = idx_files(nowhere / "there", write_idx)
    offer("mnist", *(server.offer(name, content) for name, content in files.items()))
    line = refusal(DataError, lambda: load("mnist"))
    assert "fetch it with `partwise data mnist --download`, or put the four IDX files" in line
    assert server.asked == []
    source = load("mnist", download=True)
    assert source.x[:30, 0, 0, 0].tolist() == [5 + i for i in range(30)]
    folder = nowhere / "home" / ".cache" / "partwise" / "mnist"
    assert read_tree(folder) == {str(folder / name): content for name, content in sorted(files.items())}
    assert len(server.asked) == 4
    load("mnist", download=True)
    assert download.download("mnist") == folder
    assert len(server.asked) == 4  # nothing is fetched twice
    shown = capsys.readouterr()
    assert shown.out == ""
    assert (
        shown.err.splitlines()[0] == f"downloading {server.address}/{IDX[0]}.gz, {len(files[f'{IDX[0]}.gz']):,} bytes"
    )


def test_into_a_root_what_lies_there_stays(
    nowhere: Path, server: Server, offer: Callable[..., DataEntry], write_idx: Callable[..., None]
) -> None:
    files = idx_files(nowhere / "there", write_idx)
    offer("mnist", *(server.offer(name, content) for name, content in files.items()))
    mine = nowhere / "root" / "mnist" / f"{IDX[1]}.gz"
    write_tree(mine.parent, {mine.name: b"mine"})
    assert download.download("mnist", nowhere / "root") == mine.parent
    assert (mine.read_bytes(), len(server.asked)) == (b"mine", 3)
    assert not (nowhere / "home").exists()
    assert refusal(DataError, lambda: load("mnist", nowhere / "root")).startswith(str(mine))
    mine.unlink()
    assert download.download("mnist", mine.parent) == mine.parent  # the set's own folder is a root as well


def archive(content: dict[str, bytes | str]) -> bytes:
    """A .tar.gz; a text is the target of a link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, entry in content.items():
            member = tarfile.TarInfo(name)
            if isinstance(entry, str):
                member.type, member.linkname = tarfile.SYMTYPE, entry
                tar.addfile(member)
            else:
                member.size = len(entry)
                tar.addfile(member, io.BytesIO(entry))
    return file.getvalue()


FOLDER = "cifar-10-batches-bin"
CIFAR = {f"{FOLDER}/{file}": f"content of {file}".encode() for file in cifar.CIFAR10}


def test_of_an_archive_the_needed_files_are_taken_and_nothing_else(
    nowhere: Path, server: Server, offer: Callable[..., DataEntry]
) -> None:
    evil: dict[str, bytes | str] = {
        "../evil": b"x",
        "/evil": b"x",
        f"{FOLDER}/../../evil": b"x",
        f"{FOLDER}/more": b"x",
    }
    file = server.offer("cifar.tar.gz", archive({**evil, f"{FOLDER}/link": "/etc", **CIFAR}))
    offer("cifar10", replace(file, members=tuple(CIFAR)))
    mine = {f"{FOLDER}/data_batch_3.bin": b"mine"}  # what lies there stays
    write_tree(nowhere / "root", mine)
    folder = download.download("cifar10", nowhere / "root")
    assert folder == nowhere / "root" / FOLDER
    expected = {str(nowhere / "root" / name): content for name, content in {**CIFAR, **mine}.items()}
    assert read_tree(nowhere / "root") == expected
    assert not list(nowhere.rglob("evil"))


@pytest.mark.parametrize(("content", "problem"), [
    ({**CIFAR, f"{FOLDER}/test_batch.bin": "/etc/passwd"}, f"the archive lacks {FOLDER}/test_batch.bin"),
    ({name: CIFAR[name] for name in list(CIFAR)[1:]}, f"the archive lacks {FOLDER}/data_batch_1.bin"),
    (None, "cannot be downloaded: not a gzip file"),
])  # fmt: skip
def test_an_archive_with_links_or_gaps_is_refused(
    content: dict[str, bytes | str] | None,
    problem: str,
    nowhere: Path,
    server: Server,
    offer: Callable[..., DataEntry],
) -> None:
    file = server.offer("cifar.tar.gz", b"no archive" if content is None else archive(content))
    offer("cifar10", replace(file, members=tuple(CIFAR)))
    line = refusal(DataError, lambda: load("cifar10", download=True))
    assert line.startswith(f"{file.url}: cannot be downloaded: ")
    assert problem in line


def test_an_archive_of_images_is_kept_as_it_is(nowhere: Path, server: Server, offer: Callable[..., DataEntry]) -> None:
    offer("tiny-imagenet", server.offer("tiny-imagenet-200.zip", b"an archive"))
    folder = download.download("tiny-imagenet")
    assert (folder / "tiny-imagenet-200.zip").read_bytes() == b"an archive"
    place, _ = CATALOGUE["tiny-imagenet"].find(None)
    assert place is not None
    assert place.path == folder / "tiny-imagenet-200.zip"


def part(folder: Path) -> Path:
    (found,) = folder.glob("*.part")
    return found


def test_fault_10_what_arrives_must_be_whole(nowhere: Path, server: Server) -> None:
    cut = server.offer("cut.gz", b"0123456789", announced=20)
    line = refusal(DataError, lambda: download.fetch(replace(cut, size=20), nowhere))
    kept = part(nowhere)
    assert line == (f"{cut.url}: cannot be downloaded: expected 20 bytes, got 10; the incomplete file is {kept}")
    assert kept.read_bytes() == b"0123456789"
    kept.unlink()
    line = refusal(DataError, lambda: download.fetch(replace(server.offer("long.gz", bytes(10**6)), size=5), nowhere))
    assert "expected 5 bytes, got more;" in line  # a stream without end is not followed
    part(nowhere).unlink()
    wrong = server.offer("wrong.gz", b"0123456789")
    line = refusal(DataError, lambda: download.fetch(replace(wrong, md5="0" * 32), nowhere))
    assert f"expected md5 {'0' * 32}, got {wrong.md5}; the incomplete file is {part(nowhere)}" in line
    assert [file.name for file in nowhere.iterdir()] == [part(nowhere).name]


def test_fault_09_a_server_that_refuses_stops_or_is_not_there(
    nowhere: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refusal(DataError, lambda: download.fetch(Download(f"{server.address}/nothing.gz", 5, "x"), nowhere))
    assert line == f"{server.address}/nothing.gz: cannot be downloaded: HTTP Error 404: Not Found"

    def stop(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"01234", announced=10)
        server.done.wait()

    server.answers["/stops.gz"] = stop
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    line = refusal(DataError, lambda: download.fetch(Download(f"{server.address}/stops.gz", 10, "x"), nowhere))
    assert line == f"{server.address}/stops.gz: cannot be downloaded: timed out; the incomplete file is {part(nowhere)}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/file.gz"
    line = refusal(DataError, lambda: download.fetch(Download(closed, 10, "x"), nowhere))
    assert "Connection refused" in line


def test_a_bar_on_a_terminal(nowhere: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(download, "Console", lambda stderr: Console(file=shown, force_terminal=True, width=100))
    download.fetch(server.offer("file.gz", bytes(2000)), nowhere)
    assert "file.gz" in shown.getvalue()
    assert "2.0/2.0 kB" in shown.getvalue()


def test_redirects_are_followed(nowhere: Path, server: Server) -> None:
    file = server.offer("file.gz", b"content")

    def moved(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(301)
        handler.send_header("Location", "/file.gz")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    server.answers["/old/file.gz"] = moved
    download.fetch(replace(file, url=f"{server.address}/old/file.gz"), nowhere)
    assert (nowhere / "file.gz").read_bytes() == b"content"


def test_fault_09_a_cache_that_cannot_be_written(
    nowhere: Path, server: Server, offer: Callable[..., DataEntry]
) -> None:
    offer("tiny-imagenet", server.offer("tiny-imagenet-200.zip", b"an archive"))
    (nowhere / "home").write_text("no folder")
    assert "cannot be made: Not a directory" in refusal(DataError, lambda: download.download("tiny-imagenet"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_fault_09_a_full_disk(nowhere: Path, server: Server) -> None:
    file = server.offer("file.gz", bytes(100))
    name = f"file.gz.{os.getpid()}.part"
    (nowhere / name).symlink_to("/dev/full")
    line = refusal(DataError, lambda: download.fetch(file, nowhere))
    assert "No space left on device" in line


def test_sets_without_an_official_download_say_where_they_are(nowhere: Path) -> None:
    for name in ("pacs", "office-home", "domainnet"):
        line = refusal(DataError, lambda name=name: load(name, download=True))
        assert f"data set '{name}' is missing: looked in " in line
        assert "DOMAIN/CLASS/IMAGE" in line
        assert "--download" not in line
        assert refusal(DataError, lambda name=name: download.download(name)) == line
    assert "did you mean 'mnist'" in refusal(ConfigError, lambda: download.download("mnits"))


def test_what_is_offered_is_what_is_looked_for() -> None:
    for known in CATALOGUE.values():
        if known.folder:
            got = {(file.members or (file.url,))[at].rpartition("/")[2].removesuffix(".gz")
                   for file in known.downloads for at in range(len(file.members) or 1)}  # fmt: skip
            assert known.folder == known.layouts[0].name
            assert got == set(known.layouts[0].files)

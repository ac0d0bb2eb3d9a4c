"""Workers that meet on an object store: a real S3 server, conditional puts, kills, what comes back to the folder."""

import importlib.util
import threading
from dataclasses import replace

import pytest

from repflow.core.errors import InputError, MissingExtraError, StoreError
from repflow.store.claims import bucket
from repflow.store.claims.bucket import BucketPlace, check_store
from repflow.store.claims.ledger import CLAIMS, Kind, last_entry
from repflow.store.claims.protocol import Phase
from repflow.studies.engine.cells import Bench, run_cells
from repflow.studies.scale.worker import work
from tests.studies.recall.tiny import tiny
from tests.studies.scale.test_shares import NAME, POST, divided, measure, run, same_bytes, serial


@pytest.fixture(scope="module")
def store():
    """Address of a bucket on a server of this process."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    own = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**own, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket/runs"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def place(store, request):
    return BucketPlace(f"{store}/{request.node.name}")


def test_of_many_that_create_one_object_one_is_first(place):
    won, barrier = [], threading.Barrier(8)

    def create(number):
        barrier.wait()
        won.append(place.create("claims/x/000001", str(number).encode()))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert place.names("claims/x") == ["000001"]
    first = place.read("claims/x/000001")
    assert place.create("claims/x/000001", first)  # an answer was lost: the object is ours
    place.delete("claims/x/000001")
    place.delete("claims/x/000001")
    assert place.read("claims/x/000001") is None
    assert place.names("claims/x") == []


def test_two_machines_share_a_study_and_a_third_reads_it(order, shop, store):
    """Each machine has a folder of its own; results come to the folder that asks for them."""
    order = replace(order, cells=order.cells[:4])
    half = 2
    here = replace(order, folder=shop / "one" / "study", store=f"{store}/many", cells=order.cells[:half])
    there = replace(order, folder=shop / "two" / "study", store=f"{store}/many")
    assert work(here, POST).finished == half
    assert work(there, POST).finished == len(order.cells) - half
    outcomes = list(run_cells(order.cells, order.folder, store=f"{store}/many"))
    assert {outcome.status for outcome in outcomes} == {"finished"}
    for cell in order.cells:
        for file in ("result.json", "result.safetensors"):
            ours, theirs = (folder / cell.name / file for folder in (order.folder, shop / "serial" / "study"))
            assert ours.read_bytes() == theirs.read_bytes()


class Died(Exception):
    """A process that is gone: nothing behind it runs."""


def test_whoever_comes_next_completes_what_was_uploaded(order, shop, store, monkeypatch):
    """A worker dies between `done` and the copy to its place; one on another machine completes it without working."""
    here = replace(order, folder=shop / "dies" / "study", store=f"{store}/dies", cells=order.cells[:1])
    place, results = here.meeting()

    def die(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(bucket.BucketResults, "place", die)
        with pytest.raises(Died):
            work(here, POST)
    name = order.cells[0].name
    assert last_entry(place, name).kind is Kind.DONE
    assert not results.placed(name)
    there = replace(here, folder=shop / "lives" / "study")
    assert work(there, POST).finished == 0
    assert results.placed(name)
    there.meeting()[1].fetch(name)
    assert (there.folder / name / "result.json").is_file()
    assert not results.study.files(".repflow/work")


def test_a_late_worker_cannot_overwrite(order, shop, store):
    """Its claim was taken over while it worked: what it uploads is deleted and never reaches the place."""
    here = replace(order, folder=shop / "late" / "study", store=f"{store}/late", cells=order.cells[:1])
    cell = order.cells[0]
    with Bench(here.cells, here.folder, POST.policy, store=here.store) as late:
        held = late.board.take(cell.name, "x")
        there = replace(here, folder=shop / "early" / "study")
        place, results = there.meeting()
        entry = replace(last_entry(place, cell.name), number=2, attempt="", token="ab" * 6)
        place.create(f"{CLAIMS}/{cell.name}/000002", entry.to_bytes())
        work_ = held.begin()
        (work_ / cell.name).mkdir()
        (work_ / cell.name / "result.json").write_text("late")
        assert not held.finish()
    assert held.state.phase is Phase.HOLD
    assert not results.placed(cell.name)
    assert not results.study.files(cell.name)
    assert not results.study.files(".repflow/work")


def test_shares_of_a_run_through_a_store(shop, tmp_path, store, monkeypatch):
    monkeypatch.chdir(shop)
    serial(measure(), tmp_path / "serial")
    whole = replace(divided(measure(), tmp_path / "one" / "runs", split=2), store=f"{store}/shares")
    first, second = whole.stages()
    assert work(replace(first, cells=first.cells[:1]), POST).finished == 1
    there = tmp_path / "two" / "runs"
    assert work(replace(first, folder=there), POST).finished == 1
    assert work(replace(second, folder=there), POST).finished == 1
    same_bytes(tmp_path / "serial", there)
    assert len(whole.stages()) == 1
    assert not whole.meeting()[1].study.files(".repflow/shares")


def test_what_lies_beside_a_run_comes_with_it(tmp_path, store):
    config = tiny(rows=["none/4", "ssd/4"], keep_models=True)
    whole = replace(divided(config, tmp_path / "one" / "runs", split=1), store=f"{store}/beside")
    for stage in whole.stages():
        work(stage, POST)
    there = replace(whole, folder=tmp_path / "two" / "runs")
    there.meeting()[1].fetch(NAME)
    here, other = (sorted(path.name for path in order.folder.rglob("*.safetensors")) for order in (whole, there))
    assert here == other
    assert other.count("model.safetensors") == 2


def test_the_command(shop, store, monkeypatch):
    monkeypatch.chdir(shop)
    words = ["measure", "a", "--task", "random", "--length", "12", "--samples", "2", "--name", NAME]
    done = run("--store", f"{store}/cli", "--worker", "--", *words, "--out", "far/runs")
    assert done.exit_code == 0, done.stderr
    place = BucketPlace(f"{store}/cli/runs")
    assert f"{NAME}/result.json" in place.files("")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("runs", "a folder is out"),
        ("foo://x/y", "Protocol not known"),
        ("gs://x/y", "gcsfs"),
        ("s3://no-such-bucket/y", "create the bucket"),
    ],
)
def test_addresses_that_are_none(store, url, message):
    with pytest.raises(InputError, match=message):
        check_store(url)


def test_a_store_that_does_not_answer(store, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="credentials and the network"):
        check_store(store)
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_without_conditions_is_refused(store, monkeypatch):
    monkeypatch.setattr(BucketPlace, "create", lambda *_: True)
    with pytest.raises(InputError, match="refuses a second object"):
        check_store(store)


def test_a_missing_package(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "fsspec" else find(name))
    with pytest.raises(MissingExtraError, match=r"repflow\[s3\]"):
        check_store("s3://x/y")

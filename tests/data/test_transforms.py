"""What a reader fitted makes the same samples of the same rows and images, and of new ones by the same rules."""

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from partwise.data import from_arrays, load
from partwise.data.readers.frames import framed
from partwise.data.readers.tables import from_frame
from partwise.data.reading import Reading
from partwise.data.transforms import ArrayTransform, ImageTransform, TableTransform
from partwise.errors import DataError

ROWS = pandas.DataFrame(
    {"age": [40, 50, None], "sex": ["m", None, "f"], "dose": [0.5, 1.5, 2.5], "ill": ["no", "yes", "no"]}
)


def test_a_table_is_made_as_it_was_read():
    source = from_frame(ROWS, Reading(label="ill", missing="mean"))
    assert source.table == TableTransform(("age", "sex=f", "sex=m", "dose"), ("age", "sex", "sex", "dose"))
    again = source.transform.apply(framed(ROWS, "rows"))
    assert torch.equal(again.nan_to_num(-1), source.x.nan_to_num(-1)) and again[2, 0].isnan()
    assert source.x[:, 1:].tolist() == [[0, 1, 0.5], [0, 0, 1.5], [1, 0, 2.5]]


def test_new_rows_are_made_by_the_columns_of_the_first():
    """In any order of columns, with texts that are unknown and a number that no float32 holds."""
    source = from_frame(ROWS, Reading(label="ill", missing="mean"))
    new = pandas.DataFrame({"dose": [1e300], "sex": ["d"], "city": ["Graz"], "age": [7]})
    assert source.transform.apply(framed(new, "rows")).tolist() == [[7, 0, 0, float("inf")]]
    with pytest.raises(DataError, match="column 'age': a number is too large"):
        source.transform.apply(framed(new.assign(age=[10**400]), "rows"))


def test_a_column_may_be_called_like_a_text_of_another():
    """`a=b` is a text of column `a`, and `a=b=c` one of column `a=b`."""
    transform = TableTransform(("a=b", "a=b=c"), ("a", "a=b"))
    table = framed(pandas.DataFrame({"a": ["b", "x"], "a=b": ["y", "c"]}), "rows")
    assert transform.apply(table).tolist() == [[1, 0], [0, 1]]
    assert not transform.is_number("a=b") and transform.texts("a=b") == ["c"]


def test_an_image_is_made_as_it_was_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (4, 10, 12, 3)).astype(np.uint8)
    for number, each in enumerate(pixels):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        Image.fromarray(each).save(folder / f"{number}.png")
    source = load(str(tmp_path), image_size=8)
    assert source.transform == ImageTransform((3, 8, 8))
    made = [source.transform.apply(Image.fromarray(pixels[number])) for number in (0, 2, 1, 3)]  # a before b
    assert torch.equal(torch.stack(made), source.x)


def test_images_of_other_units_and_channels():
    image = Image.new("RGB", (4, 4), (255, 255, 255))
    white = ImageTransform((1, 2, 2), white=16.0).apply(image)
    assert white.shape == (1, 2, 2) and white.unique().tolist() == [16]


def test_arrays_are_as_they_are():
    x = np.arange(12.0).reshape(2, 6)
    source = from_arrays(x, [0, 1])
    assert source.transform == ArrayTransform((6,)) and torch.equal(source.transform.apply(x), source.x)

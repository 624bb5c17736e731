"""Encoders of raw rows to a network's inputs, as fitted in training: saved with a run, used on new rows.

Each encoder consists of plain values that JSON holds exactly, so that a row has the same bits everywhere.
"""

import dataclasses
import io
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from fedclust.proof.units import conversion
from fedclust.support.checks import few, read_as
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd


Encoding: TypeAlias = Literal["onehot", "index"]

MISSING = "(missing)"
_LARGEST = np.finfo(np.float32).max

Resize: TypeAlias = Literal["none", "stretch", "crop"]
MODES = {1: "L", 3: "RGB"}
# Some formats that Pillow can open start a program: PostScript, for example, starts Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


UNITS = 10.0  # a column whose values are this many times larger than elsewhere probably has another unit


def size_of(mean: float, mean_square: float) -> float:
    """Return the root mean square of values; 0 where it shows no unit: there is none, or all are 0 or 1.

    Parameters
    ----------
    mean, mean_square
        Of the values, and of their squares; values of 0 and 1 are their own squares.

    Examples
    --------
    >>> size_of(mean=2.0, mean_square=9.0), size_of(mean=0.25, mean_square=0.25)
    (3.0, 0.0)
    """
    return 0.0 if math.isclose(mean, mean_square, rel_tol=1e-12) else math.sqrt(mean_square)


def other_unit(name: str, size: float, elsewhere: float, whose: str = "the other sites") -> str | None:
    """Return a line if a column's values differ greatly in size from those elsewhere.

    Parameters
    ----------
    name
        Name of the column.
    size, elsewhere
        Root mean square of its values, and of those to compare it with; 0 if unknown, see :func:`size_of`.
    whose
        To whom the latter belong.

    Examples
    --------
    >>> other_unit("glucose", 108.0, 6.0)
    'column glucose may be in another unit: its values are about 108, those of the other sites 6'
    >>> other_unit("glucose", 108.0, 90.0)
    """
    small, large = sorted((size, elsewhere))
    if small <= 0 or large < small * UNITS:
        return None
    sizes = f"its values are about {size:.3g}, those of {whose} {elsewhere:.3g}"
    return f"column {name} may be in another unit: {sizes}"


def other_units(sizes: Mapping[str, float]) -> dict[str, float]:
    """Find the sites where a column's values differ greatly in size from those at most of the other sites.

    Parameters
    ----------
    sizes
        Root mean square of the column's values at each site, by its name; 0 where there are none.

    Returns
    -------
    For each such site, the size of the values at those from which it differs: their lower median.

    Examples
    --------
    >>> other_units({"north": 108.0, "east": 6.0, "south": 5.0})
    {'north': 5.0}
    """
    ordered = np.sort([size for size in sizes.values() if size > 0])  # sorted, as there may be many sites
    every = np.array([*sizes.values()])
    below = np.searchsorted(ordered * UNITS, every, side="right")
    above = np.searchsorted(ordered, every * UNITS, side="left")
    found: dict[str, float] = {}
    for (site, size), low, high in zip(sizes.items(), below, above, strict=True):
        if size > 0 and 2 * (low + len(ordered) - high) > len(ordered) - 1:
            far = [*ordered[:low], *ordered[high:]]
            found[site] = float(far[(len(far) - 1) // 2])
    return found


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Attributes
    ----------
    name
        Name of the column.
    fill
        Value that replaces a missing number, before scaling.
    mean, scale
        Values are reduced by `mean`, then divided by `scale`.
    size
        Root mean square of the values at a typical site, the geometric median; 0 if unknown.
    sizes
        The same of each site that may use another unit than most others, by its name.
    """

    name: str
    fill: float
    mean: float
    scale: float
    size: float = 0.0
    sizes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scale == 0:
            raise ValueError(f"column {self.name}: scale must not be 0, got {self.scale}")

    def of_sites(self, sizes: Mapping[str, float]) -> "NumberColumn":
        """Return the column with the sizes of its values at all sites; see :func:`other_units`."""
        logs = [math.log(size) for size in sizes.values() if size > 0]
        typical = math.exp(statistics.median(logs)) if logs else 0.0
        return dataclasses.replace(
            self, size=typical, sizes={site: sizes[site] for site in other_units(sizes)}
        )

    def scaled(self, values: FloatArray) -> FloatArray:
        """Scale float64 values, NaN where missing, in the steps of scikit-learn's imputer and scaler."""
        return (np.where(np.isnan(values), self.fill, values) - self.mean) / self.scale

    def other_unit(self, size: float, site: str = "") -> str | None:
        """Return a line if the root mean square of new values is far from that of the training rows.

        Parameters
        ----------
        size
            Root mean square of the new values; 0 if there are none.
        site
            Name of the site, or of its client ``site/client``, whose they are; empty for a new one.
        """
        own = site if site in self.sizes else site.partition("/")[0]
        if own in self.sizes:
            return other_unit(self.name, size, self.sizes[own], f"{own}'s training rows")
        return other_unit(self.name, size, self.size, "the training rows")


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories.

    Attributes
    ----------
    name
        Name of the column.
    values
        Its categories, in the order of their output columns or numbers; :data:`MISSING` for a missing one.
    known
        For each category, whether some client trained on it; the others are encoded like an unknown category.
    """

    name: str
    values: tuple[str, ...]
    known: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.known):
            raise ValueError(f"column {self.name} must have a known for each of its values")

    def codes(self, values: "pd.Series[Any]") -> IntArray:
        """Return the number of each value's category, -1 for an unknown one."""
        numbers = {name: number for number, name in enumerate(self.values)}
        # Training read the column as numbers or truth values, which a file of new rows holds as texts.
        typed = all(_typed(name) == name for name in self.values if name != MISSING)
        texts = category_texts(values)
        codes = {}
        for text in dict.fromkeys(texts):
            composed = normalize("NFC", text)
            code = _number_of(composed, numbers)
            codes[text] = numbers.get(_typed(composed) or "", -1) if code < 0 and typed else code
        return np.array([codes[text] for text in texts], dtype=np.int64)


@dataclass(frozen=True)
class TableEncoder:
    """Columns of a table, as :class:`fedclust.data.tables.Tables` fitted them.

    Attributes
    ----------
    numbers, categories
        The columns, in the order of the network's inputs; all others are ignored.
    encoding
        See :class:`fedclust.data.tables.Tables`.
    """

    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    encoding: Encoding

    kind: ClassVar[str] = "table"

    def encode(self, rows: "pd.DataFrame") -> FloatArray:
        """Encode rows, float32, shape (n, outputs).

        Raises
        ------
        ValueError
            If a column is missing, or a column of numbers has a value that is not a number, or not finite as
            float32, as it is or scaled.
        """
        rows = self._columns(rows)
        numbers = [numbers_of(rows[column.name]) for column in self.numbers]
        for column, values in zip(self.numbers, numbers, strict=True):
            if (np.abs(column.scaled(values)) > _LARGEST).any():
                rule = f"column {column.name} must hold numbers that are finite as float32 once scaled"
                raise ValueError(f"{rule} by 1/{column.scale:.3g}, got one that is not")
        return self.encoded(numbers, [column.codes(rows[column.name]) for column in self.categories])

    def encoded(self, numbers: Iterable[FloatArray], codes: Iterable[IntArray]) -> FloatArray:
        """Encode columns that have been read: float64 numbers, NaN where missing, and categories' codes."""
        blocks: list[NDArray[Any]] = [
            column.scaled(values)[:, None] for column, values in zip(self.numbers, numbers, strict=True)
        ]
        for column, each in zip(self.categories, codes, strict=True):
            known = np.append(column.known, False)  # the last entry is for code -1
            if self.encoding == "index":
                blocks.append(np.where(known[each], each + 1, 0)[:, None])
            else:
                blocks.append((each[:, None] == np.arange(len(column.known))) & known[:-1])
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")

    def notes(self, rows: "pd.DataFrame", site: str = "") -> list[str]:
        """List what the network ignores in some rows, and columns in another unit than at `site`, by name."""
        rows = self._columns(rows)
        used = set(self.names)
        unused = [str(name) for name in rows.columns if name not in used]
        notes = [f"columns not used: {few(unused)}"] if unused else []
        for number in self.numbers:
            values = numbers_of(rows[number.name])
            present = values[~np.isnan(values)]
            size = size_of(present.mean(), (present**2).mean()) if len(present) else 0.0
            notes += filter(None, [number.other_unit(size, site)])
        for column in self.categories:
            known = np.append(column.known, False)[column.codes(rows[column.name])]
            if not known.all():
                texts = dict.fromkeys(category_texts(rows[column.name])[~known])
                notes.append(f"{column.name}: {(~known).sum()} rows have an unknown category: {few(texts)}")
        return notes

    def converted(self, inputs: NDArray[Any], site: str) -> Iterator[tuple[str, float, float, NDArray[Any]]]:
        """Convert a site's columns of another unit than most sites have, each alone.

        Parameters
        ----------
        inputs
            The site's encoded rows, shape (n, outputs).
        site
            Name of the site, or of its client ``site/client``.

        Yields
        ------
        The column's name, the size of its values at the site and elsewhere, and the rows with it converted.
        """
        for place, column in enumerate(self.numbers):
            size = column.sizes.get(site, column.sizes.get(site.partition("/")[0], 0.0))
            if size > 0 and column.size > 0:
                raw = inputs[:, place] * column.scale + column.mean
                factor = conversion(size, column.size)[0]
                changed = inputs.copy()
                # Missing numbers are the mean.
                changed[:, place] = np.where(
                    inputs[:, place] == 0, 0, (raw * factor - column.mean) / column.scale
                )
                yield column.name, size, column.size, changed

    def without(self, sites: Collection[str]) -> "TableEncoder":
        """Return the encoder without what it says of some sites alone: their names and columns' sizes.

        Examples
        --------
        >>> column = NumberColumn("age", 0.0, 0.0, 1.0, size=40.0, sizes={"east": 480.0, "west": 470.0})
        >>> TableEncoder((column,), (), "onehot").without(["west"]).numbers[0].sizes
        {'east': 480.0}
        """
        numbers = []
        for column in self.numbers:
            others = {site: size for site, size in column.sizes.items() if site not in sites}
            numbers.append(dataclasses.replace(column, sizes=others))
        return dataclasses.replace(self, numbers=tuple(numbers))

    @property
    def encodes_to(self) -> "ArrayEncoder":
        """The format of encoded rows."""
        sizes = [len(column.values) if self.encoding == "onehot" else 1 for column in self.categories]
        return ArrayEncoder((len(self.numbers) + sum(sizes),), "float32")

    @property
    def names(self) -> list[str]:
        """Names of the columns in use."""
        return [*(column.name for column in self.numbers), *(column.name for column in self.categories)]

    def _columns(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Return rows with composed (NFC) names of columns, as files have; check that none is missing."""
        import pandas as pd

        if not isinstance(rows, pd.DataFrame):
            raise ValueError(f"rows must be a table or a pandas DataFrame, got {type(rows).__name__}")
        rows = rows.rename(columns=lambda name: normalize("NFC", name) if isinstance(name, str) else name)
        names = self.names
        if missing := [name for name in names if name not in rows.columns]:
            columns = few(rows.columns, most=20)
            raise ValueError(f"rows must have all columns of training, {few(missing)} missing; got {columns}")
        check_once(names, rows)
        return rows


@dataclass(frozen=True)
class TextEncoder:
    """Texts as rows of token numbers, with the vocabulary that :class:`fedclust.data.text.Text` built.

    Attributes
    ----------
    columns
        Possible names of a table's text column; the first that exists is used.
    length
        Number of tokens of a row; longer texts are cut, shorter ones padded.
    tokenizer
        The content of ``tokenizer.json``.
    """

    columns: tuple[str, ...]
    length: int
    tokenizer: str

    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        _check_sizes([self.length])

    @property
    def encodes_to(self) -> "ArrayEncoder":
        """The format of encoded rows."""
        return ArrayEncoder((self.length,), "int64")

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self.tokenizer)
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"encoder tokenizer must be that of a run: {error}") from error
        tokenizer.enable_truncation(self.length)
        tokenizer.enable_padding(length=self.length, pad_id=0, pad_token="[PAD]")
        return tokenizer

    def encode(self, rows: "pd.DataFrame | Sequence[str]") -> NDArray[np.int64]:
        """Encode texts, or the text column of a table, int64, shape (n, length); a missing text is empty.

        Raises
        ------
        ValueError
            If a table has no text column, or a row is not a text.
        """
        import pandas as pd

        if isinstance(rows, pd.DataFrame):
            names = [name for name in self.columns if name in rows.columns]
            if not names:
                known, columns = " or ".join(self.columns), few(rows.columns, most=20)
                raise ValueError(f"rows must have a column {known}; columns are {columns}")
            check_once(names[:1], rows)
            column = rows[names[0]]
            rows = ["" if missing else str(text) for text, missing in zip(column, column.isna(), strict=True)]
        listed = isinstance(rows, Iterable) and not isinstance(rows, str)
        if not listed or not all(isinstance(text, str) for text in rows):
            raise ValueError("rows must be a list of texts or a table with a column of them")
        # The steps of training: unencodable characters are replaced before tokens are made.
        texts = [normalize("NFC", text).encode("utf-8", "replace").decode() for text in rows]
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        return np.array(tokens, dtype=np.int64).reshape(len(texts), self.length)


@dataclass(frozen=True)
class ImageEncoder:
    """Images of one shape, with the mean and standard deviation of training.

    Attributes
    ----------
    shape
        (channels, height, width).
    resize
        See :class:`fedclust.data.images.Images`.
    mean, std
        Per channel, of pixels divided by 255.
    """

    shape: tuple[int, ...]
    resize: Literal["none", "stretch", "crop"]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    kind: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        _check_sizes(self.shape)
        if len(self.shape) != 3 or not len(self.mean) == len(self.std) == self.shape[0] or 0 in self.std:
            raise ValueError(f"shape must be 3 sizes, with a mean and std per channel, got {self.shape}")

    def encode(self, rows: Any) -> NDArray[np.uint8]:
        """Read images, uint8, shape (n, channels, height, width).

        Parameters
        ----------
        rows
            Paths of image files, or their bytes; or an array of uint8 pixels of that shape. Pixels are
            normalised later, as in training.

        Raises
        ------
        ValueError
            If an image cannot be read or has another shape.
        """
        if isinstance(rows, str | Path):
            rows = [rows]
        if hasattr(rows, "dtype"):
            pixels = np.asarray(rows)
            if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != self.shape:
                shape = _shown(self.shape)
                raise ValueError(f"images must be uint8 of shape {shape}, got {pixels.dtype} {pixels.shape}")
            return pixels
        if not isinstance(rows, Iterable) or not all(isinstance(row, str | Path | bytes) for row in rows):
            raise ValueError("images must be paths, encoded bytes, or an array of uint8 pixels")
        if self.shape[0] not in MODES:
            rule = f"images must be pixels of shape {_shown(self.shape)}"
            raise ValueError(f"{rule}, as files have {' or '.join(map(str, MODES))} channels")
        read = [decode(row, self.shape, self.resize) for row in rows]
        return np.stack(read) if read else np.zeros((0, *self.shape), np.uint8)


@dataclass(frozen=True)
class ArrayEncoder:
    """Rows that are already numbers, as the network takes them.

    Attributes
    ----------
    shape
        Shape of a row.
    dtype
        ``"float32"``, or ``"int64"`` for tokens.
    """

    shape: tuple[int, ...]
    dtype: Literal["float32", "int64"]

    kind: ClassVar[str] = "arrays"

    def __post_init__(self) -> None:
        _check_sizes(self.shape)

    @property
    def encodes_to(self) -> "ArrayEncoder":
        """The format of encoded rows."""
        return self

    def encode(self, rows: Any) -> NDArray[Any]:
        """Check the rows' shape and type; shape (n, *shape).

        Raises
        ------
        ValueError
            If they have another shape, or are not finite as float32 (and whole for tokens).
        """
        try:
            values = np.asarray(rows)
            numbers = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"rows must be numbers of shape {_shown(self.shape)}: {error}") from error
        if numbers.ndim == 2 and numbers.shape[1] == math.prod(self.shape):  # a table with a column per value
            numbers, values = (each.reshape(-1, *self.shape) for each in (numbers, values))
        if numbers.shape[1:] != self.shape:
            raise ValueError(f"rows must have shape {_shown(self.shape)}, got {numbers.shape}")
        if (endless := ~(np.abs(numbers) <= np.finfo(np.float32).max)).any():  # as in training
            raise ValueError(f"rows must be finite as float32, got {numbers[endless][0]}")
        if self.dtype == "int64" and (numbers % 1).any():
            raise ValueError(f"rows must be whole numbers (tokens), got {numbers[numbers % 1 != 0][0]}")
        return values.astype(self.dtype)


InputEncoder: TypeAlias = TableEncoder | TextEncoder | ImageEncoder | ArrayEncoder
_ENCODERS: Mapping[str, Any] = {each.kind: each for each in get_args(InputEncoder)}


def to_values(encoder: InputEncoder) -> dict[str, Any]:
    """Return an encoder's values, with its ``kind``, for JSON."""
    return {"kind": encoder.kind, **dataclasses.asdict(encoder)}


def encoder_from(values: Any) -> InputEncoder:
    """Create an encoder from the values of :func:`to_values`, which may come from an untrusted source.

    Raises
    ------
    ValueError
        If they are not those of an encoder.
    """
    kind = str(values.get("kind")) if isinstance(values, Mapping) else ""
    if kind not in _ENCODERS:
        raise ValueError(f"encoder must be one of {', '.join(_ENCODERS)}, got {str(values)[:80]}")
    try:
        encoder: InputEncoder = read_as(
            _ENCODERS[kind], {key: values[key] for key in values if key != "kind"}
        )
    except ValueError as error:
        raise ValueError(f"encoder {kind} cannot be read: {error}") from error
    return encoder


def _check_sizes(sizes: Sequence[int]) -> None:
    if not sizes or min(sizes) < 1:
        raise ValueError(f"must be sizes >= 1, got {list(sizes)}")


def _shown(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, ('n', *shape)))})"


def check_once(names: Iterable[str], rows: "pd.DataFrame") -> None:
    """Raise ValueError if a table has one of the columns several times."""
    if rows.columns.is_unique:  # else it is looked up name by name, which takes long with many columns
        return
    if twice := [name for name in names if (rows.columns == name).sum() > 1]:
        raise ValueError(f"rows must have each column once, got {few(twice)} several times")


def numbers_of(values: "pd.Series[Any]") -> FloatArray:
    """Read a column of numbers that are finite as float32, in float64, NaN where missing.

    Raises
    ------
    ValueError
        If a value is not such a number; the message reveals no value of the data except infinity.
    """
    from pandas.api import types

    try:
        if types.is_string_dtype(values.dtype):  # or of objects: may hold pandas' NA, unlike None no number
            values = values.astype(object).where(values.notna(), np.nan).map(lambda one: _TRUTH.get(one, one))
            if any("_" in one for one in values if isinstance(one, str)):  # which Python allows in a number
                raise ValueError("1_000")
        numbers: FloatArray = values.astype(np.float64).to_numpy()
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"column {values.name} must hold numbers") from error
    if (endless := np.abs(numbers) > _LARGEST).any():
        got = np.copysign(np.inf, numbers[endless][0])
        raise ValueError(f"column {values.name} must hold numbers that are finite as float32, got {got}")
    return numbers


_TRUTH = dict.fromkeys(("True", "true", "TRUE"), True) | dict.fromkeys(("False", "false", "FALSE"), False)


def category_texts(values: "pd.Series[Any]") -> NDArray[Any]:
    """Convert categories to texts; whole numbers that were read as floats are written without decimals."""
    from pandas.api import types

    if types.is_float_dtype(values):
        present = values.dropna()
        if ((present == present.round()) & (present.abs() < 2**63)).all():
            values = values.astype("Int64")
    texts: NDArray[Any] = values.astype(object).where(values.notna(), MISSING).astype(str).to_numpy(object)
    return texts


def _number_of(text: str, numbers: Mapping[str, int]) -> int:
    """Look up a category; depending on a column's other rows, a whole number may or may not end in ``.0``."""
    other = text.removesuffix(".0") if text.endswith(".0") else f"{text}.0"
    return numbers.get(text, numbers.get(other, -1))


def _typed(text: str) -> str | None:
    """Write a number or truth value as a column of them has it, ``01`` as 1, ``TRUE`` as True; else None."""
    if text in _TRUTH:
        return str(_TRUTH[text])
    for kind in (int, float):
        with suppress(ValueError, OverflowError):
            if "_" not in text and math.isfinite(number := kind(text)):
                return str(int(number) if number == int(number) else number)
    return None


def decode(
    image: bytes | str | Path, shape: tuple[int, ...], resize: Resize = "none", name: str = ""
) -> NDArray[np.uint8]:
    """Decode one image, rotated as its EXIF data specifies.

    Parameters
    ----------
    image
        Encoded bytes, or a file.
    shape
        (channels, height, width): an image with other channels is converted.
    resize
        See :class:`~fedclust.data.images.Images`.
    name
        What to call the image in errors, in addition to its path.

    Returns
    -------
    Pixels of that shape.

    Raises
    ------
    ValueError
        If the image cannot be read, is in none of the `FORMATS`, has values that 8 bits cannot hold, or has
        another height or width and must not be resized.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    channels, height, width = shape
    mode, wanted = MODES[channels], (width, height)
    named = f"image{name}" if isinstance(image, bytes) else f"image{name} ({image})"
    try:
        with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=FORMATS) as opened:
            if resize != "none":
                # The JPEG decoder may skip detail. Twice the size, so that the resampling still averages; a
                # square, because EXIF data may swap height and width.
                side = 2 * max(wanted)
                opened.draft(mode, (side, side))
            extrema: Any = opened.getextrema() if opened.mode[0] == "I" else (0, 255)
            # Pillow would clip larger values to 255.
            if opened.mode[0] == "F" or min(extrema) < 0 or max(extrema) > 255:
                raise OSError(f"must have 8 bits per channel, it has more (mode {opened.mode})")
            upright = ImageOps.exif_transpose(opened)
            picture = upright if upright.mode == mode else upright.convert(mode)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # SyntaxError: a broken PNG
        # str(error) repeats the file's name, or where in memory its bytes are.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image in a format that is read" if unknown else getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {named}: {reason}") from error
    if picture.size != wanted and resize == "none":
        shape_read = (channels, *picture.size[::-1])
        raise ValueError(f"{named} must have shape {shape}, got {shape_read}")
    if picture.size != wanted:
        scale = picture.resize if resize == "stretch" else partial(ImageOps.fit, picture)
        picture = scale(wanted, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)

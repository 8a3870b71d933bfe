"""Arithmetic on bytes as elements of GF(2^8), polynomial 0x11d: linear combinations, and the code for parity.

ISA-L is used if it is installed: from the pyeclib wheel, else the system's or the environment's. It is called directly
on the buffers, which is several times faster than pyeclib's own interface, which copies (benchmarks/redundancy.py
compares them). Else NumPy is used, with a warning; both give the same bytes. NumPy and ISA-L are imported on first use,
so that agents without parity start faster.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

log = logging.getLogger(__name__)

MAX_MEMBERS = 256  # data and parity of one stripe together: the number of elements of the field
_POLYNOMIAL = 0x11D
Term = tuple[Sequence[int], int, memoryview]  # a coefficient for each sum, first byte in the sums, bytes
_ISAL_LEAST_BYTES = 64  # ISA-L's vector code needs at least this
_ISAL_NAME = "libisal.so.2"  # of the system's library (libisal2, isa-l), which the loader finds
_ISAL_CALLS = ("ec_init_tables", "ec_encode_data", "ec_encode_data_update")


def prepare() -> None:
    """Loads what the functions here load on first use: later it may be gone, as the node's file system may be.

    Raises:
        ImportError: NumPy is not installed.
    """
    _products()
    isal()


def multiply_add(into: Sequence[memoryview], data: memoryview, coefficients: Sequence[int]) -> None:
    """into[i] += coefficients[i] * data, in one pass over `data`. All have the same length; `into` is writable."""
    import numpy as np

    if len(into) != len(coefficients):
        raise ValueError(f"{len(into)} sums, {len(coefficients)} coefficients")
    targets, source = [np.frombuffer(one, np.uint8) for one in into], np.frombuffer(data, np.uint8)
    if tuple(coefficients) == (1,):
        np.bitwise_xor(targets[0], source, out=targets[0])
    elif any(coefficients):
        if (library := isal()) is None:
            _warn_of_numpy()
        fast = library is not None and len(source) >= _ISAL_LEAST_BYTES
        (isal_multiply_add if fast else numpy_multiply_add)(targets, source, coefficients)


def combine(into: Sequence[memoryview], terms: Sequence[Term]) -> None:
    """into[i] = the sum of the terms, in one pass if ISA-L can; zeros where there is no term."""
    nbytes = len(into[0])
    if isal() and terms and nbytes >= _ISAL_LEAST_BYTES and all(len(data) == nbytes for _, _, data in terms):
        isal_combine(into, terms)
        return
    for total in into:
        total[:] = bytes(nbytes)
    for coefficients, at, data in terms:
        multiply_add([total[at : at + len(data)] for total in into], data, coefficients)


def parity_row(row: int, data: int, parity: int) -> tuple[int, ...]:
    """The coefficients of one of `parity` sums over `data` symbols. Any `data` of all symbols determine the others.

    A Cauchy matrix whose columns are scaled so that row 0 is all ones: the first sum is a plain XOR.
    """
    if data + parity > MAX_MEMBERS or not 0 <= row < parity:
        raise ValueError(f"row {row} of {parity} over {data} symbols: the field has {MAX_MEMBERS} elements")
    return tuple(
        multiply(_inverse(row ^ column), column) for column in range(parity, parity + data)
    )  # 1/(row + column) over 1/(0 + column)


def combination(lost: int, missing: Sequence[int], rows: Sequence[int], data: int, parity: int) -> dict[int, int]:
    """The coefficients that give a lost data symbol from parity rows, less the known data symbols.

    Args:
        lost: the wanted column, one of `missing`.
        missing: all unknown columns.
        rows: parity rows, as many as `missing`.

    Returns:
        The coefficient of each row.
    """
    matrix = [[parity_row(row, data, parity)[column] for column in missing] for row in rows]
    inverse = _invert(matrix)
    return dict(zip(rows, inverse[list(missing).index(lost)], strict=True))


@functools.cache
def isal() -> ctypes.CDLL | None:
    """ISA-L's functions, whose calls release the GIL; None if the library is not installed."""
    for name in _isal_names():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if all(hasattr(library, call) for call in _ISAL_CALLS):
            return library
    return None


def _isal_names() -> Iterator[str]:
    spec = find_spec("pyeclib")
    if spec and spec.origin:
        yield from map(str, sorted(Path(spec.origin).parent.parent.glob("pyeclib.libs/libisal*")))
    yield _ISAL_NAME
    yield str(Path(sys.prefix, "lib", _ISAL_NAME))  # of a conda environment, where the loader does not look


def multiply(a: int, b: int) -> int:
    """The product of two elements."""
    return int(_products()[a, b])


def numpy_multiply_add(into: Sequence[Bytes], data: Bytes, coefficients: Sequence[int]) -> None:
    import numpy as np

    for target, coefficient in zip(into, coefficients, strict=True):
        np.bitwise_xor(target, _products()[coefficient][data], out=target)


@functools.cache
def _warn_of_numpy() -> None:
    """Logs once in a process why parity is slow."""
    log.warning(
        "ISA-L was not found, so NumPy makes the parity, many times slower: pip install pyeclib, or install the "
        "system's %s (Debian: libisal2)",
        _ISAL_NAME,
    )


def isal_multiply_add(into: Sequence[Bytes], data: Bytes, coefficients: Sequence[int]) -> None:
    library: Any = isal()
    matrix, source = _isal_table(1, bytes(coefficients)), ctypes.c_void_p(data.ctypes.data)
    library.ec_encode_data_update(len(data), 1, len(into), 0, matrix, source, _addresses(into))


def isal_combine(into: Sequence[memoryview], terms: Sequence[Term]) -> None:
    """`combine` with ISA-L, for terms as long as the sums."""
    import numpy as np

    library: Any = isal()
    coefficients = bytes(one[row] for row in range(len(into)) for one, _, _ in terms)
    sources = _addresses([np.frombuffer(data, np.uint8) for _, _, data in terms])
    targets = _addresses([np.frombuffer(one, np.uint8) for one in into])
    library.ec_encode_data(len(into[0]), len(terms), len(into), _isal_table(len(terms), coefficients), sources, targets)


@functools.lru_cache(512)
def _isal_table(columns: int, coefficients: bytes) -> ctypes.Array[ctypes.c_char]:
    made = ctypes.create_string_buffer(32 * len(coefficients))
    library: Any = isal()
    library.ec_init_tables(columns, len(coefficients) // columns, coefficients, made)
    return made


def _addresses(ranges: Sequence[Bytes]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(ranges))(*(one.ctypes.data for one in ranges))


@functools.cache
def _products() -> Bytes:
    """The table of products of all pairs of elements."""
    import numpy as np

    power, logarithm, value = np.zeros(510, np.uint8), np.zeros(256, np.int64), 1
    for exponent in range(255):
        power[exponent] = power[exponent + 255] = value
        logarithm[value] = exponent
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    table = power[logarithm[:, None] + logarithm[None, :]]
    table[0, :] = table[:, 0] = 0
    return table


def _inverse(a: int) -> int:
    return int((_products()[a] == 1).argmax())


def _invert(matrix: list[list[int]]) -> list[list[int]]:
    """The inverse of a matrix by Gauss-Jordan elimination. The matrix has one row for each loss in a set."""
    size = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = next(j for j in range(i, size) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = _inverse(rows[i][i])
        rows[i] = [multiply(scale, value) for value in rows[i]]
        for j in range(size):
            if j != i and (factor := rows[j][i]):
                rows[j] = [a ^ multiply(factor, b) for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvcache.fp8 import VALUES, decode, encode, nearest_codes, rounded

NAN, INF = np.nan, np.inf

# E4M3 by value, codes 0x00 to 0x7F: bias 7, subnormals in steps of 2^-9, largest 448, no infinity.
# fmt: off
POSITIVE = np.array([
    0, 0.001953125, 0.00390625, 0.005859375, 0.0078125, 0.009765625, 0.01171875, 0.013671875,
    0.015625, 0.017578125, 0.01953125, 0.021484375, 0.0234375, 0.025390625, 0.02734375, 0.029296875,
    0.03125, 0.03515625, 0.0390625, 0.04296875, 0.046875, 0.05078125, 0.0546875, 0.05859375,
    0.0625, 0.0703125, 0.078125, 0.0859375, 0.09375, 0.1015625, 0.109375, 0.1171875,
    0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.203125, 0.21875, 0.234375,
    0.25, 0.28125, 0.3125, 0.34375, 0.375, 0.40625, 0.4375, 0.46875,
    0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375,
    1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875,
    2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75,
    4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5,
    8, 9, 10, 11, 12, 13, 14, 15,
    16, 18, 20, 22, 24, 26, 28, 30,
    32, 36, 40, 44, 48, 52, 56, 60,
    64, 72, 80, 88, 96, 104, 112, 120,
    128, 144, 160, 176, 192, 208, 224, 240,
    256, 288, 320, 352, 384, 416, 448, NAN,
])
# fmt: on
TABLE = np.concatenate([POSITIVE, -POSITIVE])
ALL_F16 = np.arange(65_536, dtype=np.uint16).view(np.float16)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16 if x.dtype == np.float16 else np.uint32)


def nearest_in_table(x: np.ndarray) -> np.ndarray:
    """Codes by search in the table, in float64: nearest, ties to the even code, saturating."""
    magnitude = np.minimum(np.abs(np.nan_to_num(x.astype(np.float64), posinf=448, neginf=-448)), 448)
    finite = POSITIVE[:127]
    above = np.clip(np.searchsorted(finite, magnitude), 1, 126)
    below = above - 1
    up, down = finite[above] - magnitude, magnitude - finite[below]
    codes = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    codes = np.where(np.isnan(x), 0x7F, codes)
    return (codes | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def test_every_code_stands_for_its_value() -> None:
    np.testing.assert_array_equal(VALUES, TABLE)
    assert np.signbit(VALUES[:127]).sum() == 0
    assert np.signbit(VALUES[128:255]).all()


def test_every_value_goes_back_to_its_code() -> None:
    np.testing.assert_array_equal(nearest_codes(TABLE.astype(np.float32)), np.arange(256))


def test_every_f16_number_gets_the_nearest_code() -> None:
    np.testing.assert_array_equal(nearest_codes(ALL_F16), nearest_in_table(ALL_F16))


def test_codes_between_neighbours_are_nearest_in_f32_too() -> None:
    finite = POSITIVE[:127].astype(np.float32)
    middle = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(INF))])
    np.testing.assert_array_equal(nearest_codes(x), nearest_in_table(x))
    np.testing.assert_array_equal(nearest_codes(-x), nearest_in_table(-x))


@pytest.mark.parametrize("x", [0.01, 2**-9, 2**-10, 2**-6, 0.015624, -0.01, -(2**-9)])
def test_small_numbers_stay_small(x: float) -> None:
    """An encoder with its subnormal cutoff at 2^-9 turns 0.01 into -448."""
    code = nearest_codes(np.array([x], np.float32))
    assert abs(float(VALUES[code[0]]) - x) <= 2**-10


def test_rows_of_scale_one_keep_all_codes_up_to_240() -> None:
    """Rows whose largest magnitude is 240 are encoded as they are."""
    kept = np.flatnonzero(np.abs(TABLE) <= 240)
    row = TABLE[kept].astype(np.float32)[None]
    codes, scales = encode(row)
    assert scales.tolist() == [1]
    np.testing.assert_array_equal(codes[0], kept)
    np.testing.assert_array_equal(bits(decode(codes, scales)), bits(row))


@pytest.mark.parametrize("beside", [240, 1, 65_504])
def test_all_f16_inputs_come_back_as_the_codec_says(beside: float) -> None:
    """Every f16 number in a row with a large one: the fast path against encode and decode, to the bit."""
    rows = np.stack([ALL_F16, np.full_like(ALL_F16, beside)], axis=1)
    back = rounded(rows)
    assert back.dtype == np.float16
    with np.errstate(over="ignore"):
        slow = decode(*encode(rows))
    limit = np.float32(65_504)
    np.testing.assert_array_equal(bits(back), bits(np.clip(slow, -limit, limit).astype(np.float16)))
    assert (np.signbit(back) == np.signbit(rows)).all()


def test_f16_rows_of_scale_one_against_the_table() -> None:
    small = ALL_F16[np.abs(ALL_F16) <= 240]
    rows = np.stack([small, np.full_like(small, -240)], axis=1)
    expected = TABLE[nearest_in_table(small)].astype(np.float16)
    np.testing.assert_array_equal(bits(rounded(rows)[:, 0]), bits(expected))


def test_a_finite_number_alone_in_its_row_is_exact() -> None:
    finite = ALL_F16[np.isfinite(ALL_F16)][:, None]
    np.testing.assert_array_equal(bits(rounded(finite)), bits(finite))


floats = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 40)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(floats)
def test_error_is_bounded(rows: np.ndarray) -> None:
    """Half a step: 2^-4 of a normal number, 2^-10 scales of a subnormal one; scales themselves round by 2^-24."""
    codes, scales = encode(rows)
    back = decode(codes, scales).astype(np.float64)
    bound = np.maximum(np.abs(rows.astype(np.float64)) * 2**-4, scales[:, None] * 2.0**-10)
    assert (np.abs(back - rows) <= bound * (1 + 1e-6) + 2**-149).all()
    assert (np.signbit(back) == np.signbit(rows)).all()


@given(floats)
def test_fast_path_is_the_codec(rows: np.ndarray) -> None:
    np.testing.assert_array_equal(bits(rounded(rows)), bits(decode(*encode(rows))))


@given(floats)
def test_largest_magnitude_decides_the_scale(rows: np.ndarray) -> None:
    absmax = np.abs(rows).max(axis=1)
    _, scales = encode(rows)
    normal = absmax >= 240 * np.finfo(np.float32).tiny
    np.testing.assert_allclose(scales[normal], absmax[normal] / 240, rtol=1e-6)
    assert (scales[absmax == 0] == 1).all()
    assert (scales > 0).all()


@pytest.mark.parametrize("largest", [1e-45, 1e-40, 1e-37, 3.4e38])
def test_extreme_rows_come_back_finite(largest: float) -> None:
    row = np.array([[largest, -largest / 2, 0, -0.0]], np.float32)
    back = rounded(row)
    np.testing.assert_allclose(back, row, rtol=2**-4, atol=2.0**-136)
    assert np.signbit(back).tolist() == [[False, True, False, True]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_nan_stays_in_its_place(dtype: type) -> None:
    clean = np.array([[3, 0, -1, 0.5], [0, 0, 0, 0]], dtype)
    spoilt = clean.copy()
    spoilt[:, 1] = NAN
    back = rounded(spoilt)
    assert np.isnan(back[:, 1]).all()
    np.testing.assert_array_equal(np.delete(back, 1, axis=1), np.delete(rounded(clean), 1, axis=1))
    codes, scales = encode(spoilt)
    assert scales.tolist() == encode(clean)[1].tolist()
    assert (codes[:, 1] & 0x7F == 0x7F).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_infinities_saturate_and_leave_the_scale_alone(dtype: type) -> None:
    back = rounded(np.array([[INF, -INF, 1, -0.0]], dtype))
    np.testing.assert_allclose(back, [[448 / 240, -448 / 240, 1, 0]], rtol=1e-3)
    assert np.signbit(back[0, 3])
    codes, _ = encode(np.array([[INF, -INF]], dtype))
    assert codes.tolist() == [[0x7E, 0xFE]]
    top = np.finfo(dtype).max
    np.testing.assert_array_equal(rounded(np.array([[INF, -INF, top]], dtype)), [[top, -top, top]])


def test_decoded_infinities_are_finite() -> None:
    top = np.finfo(np.float32).max
    back = decode(*encode(np.array([[INF, -INF, top]], np.float32)))
    np.testing.assert_array_equal(back, np.array([[top, -top, top]]))


def test_rows_do_not_touch_each_other() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 24)).astype(np.float32)
    rows *= np.logspace(-6, 6, 50, dtype=np.float32)[:, None]
    together = rounded(rows)
    np.testing.assert_array_equal(together, np.concatenate([rounded(row[None]) for row in rows]))
    rows[7, 3] = INF
    np.testing.assert_array_equal(np.delete(rounded(rows), 7, axis=0), np.delete(together, 7, axis=0))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_to_encode(shape: tuple[int, int]) -> None:
    codes, scales = encode(np.empty(shape, np.float32))
    assert codes.shape == shape
    assert scales.tolist() == [1] * shape[0]
    assert rounded(np.empty(shape, np.float16)).shape == shape


def test_input_is_left_alone() -> None:
    for dtype in (np.float16, np.float32):
        rows = np.array([[1.03, -0.7, 5]], dtype)
        before = rows.copy()
        rounded(rows)
        np.testing.assert_array_equal(rows, before)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        rounded(np.ones((1, 2)))  # type: ignore[type-var]

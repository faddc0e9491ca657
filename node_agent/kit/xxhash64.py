"""The hash XXH64, as its specification has it: for fingerprints that other programs make in the same way."""

from collections.abc import Callable

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_STRIPE = 32


def xxh64(data: bytes, seed: int = 0) -> int:
    """The hash of ``data``; it needs no secret and keeps none."""
    whole = len(data) - len(data) % _STRIPE
    state = _stripes(data[:whole], seed) if whole else seed + _P5
    return _avalanche(_tail(data[whole:], (state + len(data)) & _MASK))


def _stripes(data: bytes, seed: int) -> int:
    lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
    for at in range(0, len(data), _STRIPE):
        lanes = [_round(lane, _word(data, at + 8 * number, 8)) for number, lane in enumerate(lanes)]
    state = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        state = (state ^ _round(0, lane)) * _P1 + _P4
    return state & _MASK


def _tail(data: bytes, state: int) -> int:
    """What is left after the stripes: in words of eight bytes, then one of four, then single ones."""
    mixes: tuple[tuple[int, Callable[[int, int], int]], ...] = (
        (8, lambda state, word: _rotated(state ^ _round(0, word), 27) * _P1 + _P4),
        (4, lambda state, word: _rotated(state ^ (word * _P1 & _MASK), 23) * _P2 + _P3),
        (1, lambda state, word: _rotated(state ^ (word * _P5 & _MASK), 11) * _P1),
    )
    at = 0
    for size, mix in mixes:
        while at + size <= len(data):
            state = mix(state, _word(data, at, size)) & _MASK
            at += size
    return state


def _avalanche(state: int) -> int:
    state = (state ^ state >> 33) * _P2 & _MASK
    state = (state ^ state >> 29) * _P3 & _MASK
    return state ^ state >> 32


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * _P2, 31) * _P1 & _MASK


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> 64 - by) & _MASK


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")

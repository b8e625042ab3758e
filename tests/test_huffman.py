"""Lorenzo prediction and Huffman coding: inverses, optimal lengths, definition and kernel alike."""

import heapq
import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import CONTENTS, DTYPES, assert_same, torch_threads

from division import fixedlength, huffman, kernels, lorenzo
from division.kernels import cpu

FEW = settings(deadline=None, derandomize=True, max_examples=60)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_running_sum_undoes_the_difference(dims):
    """Item 3: exact for one, two and three dimensions."""
    x = torch.randint(-(2**21), 2**21, (3, 4, 5, 6, 7), dtype=torch.int32)
    left = lorenzo.difference(x, dims)
    assert torch.equal(lorenzo.running_sum(left, dims), x)
    assert left.dtype == torch.int32


def test_the_prediction_is_lorenzos():
    q = torch.randint(-100, 100, (5, 6), dtype=torch.int32)
    left = lorenzo.difference(q, 2)
    for y in range(1, 5):
        for x in range(1, 6):
            expected = q[y, x] - q[y - 1, x] - q[y, x - 1] + q[y - 1, x - 1]
            assert left[y, x] == expected
    assert torch.equal(left[0], torch.diff(q[0], prepend=q.new_zeros(1)))


def unlimited_cost(counts: list[int]) -> int:
    """Bits of the best code without a limit: the sum of all merged weights."""
    heap = [count for count in counts if count]
    heapq.heapify(heap)
    cost = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cost += merged
        heapq.heappush(heap, merged)
    return cost


@FEW
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=300).filter(any))
def test_code_lengths_are_the_best(counts):
    histogram = torch.tensor(counts)
    lengths = huffman.code_lengths(histogram, 24)
    used = sum(count > 0 for count in counts)
    assert bool(((lengths > 0) == (histogram > 0)).all())
    if used > 1:
        assert int((lengths * histogram).sum()) == unlimited_cost(counts)
        assert sum(2.0 ** -int(length) for length in lengths if length) == 1


def test_code_lengths_are_limited():
    """Weights of Fibonacci would need codes as long as there are symbols."""
    weights = [1, 1]
    while len(weights) < 40:
        weights.append(weights[-1] + weights[-2])
    lengths = huffman.code_lengths(torch.tensor(weights))
    assert int(lengths.max()) == huffman.LONGEST
    assert sum(2.0 ** -int(length) for length in lengths) <= 1
    longest = huffman.code_lengths(torch.ones(huffman.SYMBOLS, dtype=torch.int64))
    assert set(longest.tolist()) == {10}


def test_codes_are_free_of_prefixes():
    lengths = huffman.code_lengths(torch.randint(0, 1000, (huffman.SYMBOLS,)))
    codes = huffman.canonical_codes(lengths).tolist()
    pairs = zip(codes, lengths.tolist(), strict=True)
    words = sorted(f"{code:0{length}b}" for code, length in pairs if length)
    assert not any(b.startswith(a) for a, b in itertools.pairwise(words))


def test_lengths_are_kept_only_as_far_as_they_reach():
    lengths = torch.zeros(huffman.SYMBOLS, dtype=torch.uint8)
    lengths[[0, 2, 509, 512]] = torch.tensor([3, 3, 2, 1], dtype=torch.uint8)
    trimmed = huffman.trim(lengths)
    assert trimmed.tolist() == [3, 0, 3, 0, 2, 0, 0, 1, 0, 0, 0]
    assert torch.equal(huffman.untrim(trimmed), lengths)


def check(x, bound, dither, seed, slow=True):
    options = (bound, dither, seed)
    expected = huffman.pack_huffman(x, *options)
    found = cpu.pack_huffman(x, *options)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)
    layout = (list(x.shape), fixedlength.is_channel_last(x))
    back = cpu.unpack_huffman(*expected, *layout, *options)
    if slow:
        assert_same(back, huffman.unpack_huffman(*expected, *layout, *options))
    return back


@settings(FEW, max_examples=40)
@given(
    shape=st.sampled_from(((1,), (100,), (5, 130), (2, 3, 61), (0, 4, 8, 8), (1, 2, 3, 5, 7)))
    | st.tuples(
        st.integers(1, 2), st.sampled_from((1, 3, 32)), st.integers(1, 9), st.integers(1, 9)
    ),
    dtype=st.sampled_from(DTYPES),
    content=st.sampled_from(sorted(CONTENTS)),
    channels_last=st.booleans(),
    bound=st.floats(-6, 1).map(lambda power: 10**power),
    dither=st.booleans(),
)
def test_bytes_are_the_definitions(shape, dtype, content, channels_last, bound, dither):
    """Item 4: definition and kernel produce equal payloads, and decode them alike."""
    x = CONTENTS[content](torch.randn(shape)).to(dtype)
    if channels_last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    check(x, bound, dither, 7)


@pytest.mark.parametrize("shape", [(3, 20, 17, 33), (2, 3, 70, 70), (2, 9000), (4, 64, 8, 8)])
def test_integers_survive(shape, layout):
    """Item 3: coding is lossless; the fixed-length coder, which shares nothing, agrees."""
    x = torch.randn(shape)
    if len(shape) == 4:
        x = x.contiguous(memory_format=layout)
    for bound in (1e-4, 0.03):  # with and without differences beyond the radius
        back = check(x, bound, False, 0, slow=False)
        parts = cpu.pack_bounded(x, bound, False, 0)
        last = fixedlength.is_channel_last(x)
        assert_same(back, cpu.unpack_bounded(*parts, list(shape), last, bound, False, 0))


def test_threads_do_not_change_bytes():
    x = torch.randn(4, 16, 32, 32)
    results = []
    for threads in (1, 2):
        with torch_threads(threads):
            parts = cpu.pack_huffman(x, 0.01, False, 0)
            results.append(
                (*parts, cpu.unpack_huffman(*parts, list(x.shape), False, 0.01, False, 0))
            )
    for one, two in zip(*results, strict=True):
        assert_same(one, two)


def test_unpacking_is_an_operator():
    x = torch.randn(2, 3, 9, 8)
    parts = kernels.pack_huffman(x, 0.01, False, 0)
    arguments = (*parts, [2, 3, 9, 8], False, 0.01, False, 0)
    torch.library.opcheck(torch.ops.division.unpack_huffman.default, arguments)


@pytest.mark.parametrize("backend", [cpu, huffman])
def test_a_payload_of_the_wrong_length_is_refused(backend):
    """Item 4: the decoder never reads past the payload."""
    lengths, words, *rest = cpu.pack_huffman(torch.randn(5000), 0.01, False, 0)
    wrong = torch.cat([words, words[:1]])
    with pytest.raises(ValueError, match="payload"):
        backend.unpack_huffman(lengths, wrong, *rest, [5000], False, 0.01, False, 0)


@pytest.mark.parametrize("zeros", [0, 1, 7, 8, 9, 31, 32, 39, 127, 128, 300, 1000])
def test_runs_of_zeros(zeros):
    """Runs are cut largest first, inside a chunk; a dead channel costs a few bits."""
    x = torch.cat([torch.ones(3), torch.zeros(zeros), torch.ones(2), torch.zeros(zeros)])
    back = check(x, 0.3, False, 0)
    assert torch.equal(back, (x / 0.6).round() * 0.6)
    planes = torch.zeros(1, 6, 64, 64)
    planes[0, 2] = torch.randn(64, 64)
    words = cpu.pack_huffman(planes, 0.01, False, 0)[1]
    live = cpu.pack_huffman(planes[:, 2:3], 0.01, False, 0)[1]
    assert words.numel() <= 1.1 * live.numel() + 5 * 32
    check(planes, 0.01, False, 0)

"""Storage types, read and written by numpy from docs/arithmetic.md alone, against the C code (types_tool)."""
import re, subprocess
import numpy as np
import pytest

from support import BUILD, run

PAGE = open("docs/arithmetic.md").read()
FORMATS = ["f32", "f16", "bf16", "f8", "i8", "c4-linear", "c4-nl"]
BLOCK_BYTES = {"f32": 1024, "f16": 512, "bf16": 512, "f8": 256, "i8": 272, "c4-linear": 144, "c4-nl": 144}
CODEBOOKS = {"c4-linear": np.arange(-8, 8), "c4-nl": np.array([int(v) for v in re.search(r"`nl` = ([-0-9, ]+)\.", PAGE)[1].split(",")])}
DIVISORS = {"c4-linear": [-8, 7.2, -8.8], "c4-nl": [-127, 118, -134]}
SHAPES = [(1, 1), (8, 32), (9, 33), (3, 127), (17, 128), (130, 140), (129, 257), (264, 96)]


def small_float(codes, m_bits, e_bits, bias):
    """Finite values of a small float from its fields."""
    codes = codes.astype(np.int64)
    m, e, sign = codes & ((1 << m_bits) - 1), codes >> m_bits & ((1 << e_bits) - 1), codes >> (m_bits + e_bits)
    v = np.where(e > 0, np.ldexp(1 + m / 2**m_bits, e - bias), np.ldexp(m / 2**m_bits, 1 - bias))
    return np.where(sign == 1, -v, v).astype(np.float32)


E4M3 = small_float(np.arange(256), 3, 4, 7)
E4M3[[0x7f, 0xff]] = np.nan


def codes_of(name, b):
    """8 x 32 stored codes of a block's bytes."""
    if name in ("f32", "f16", "bf16", "f8"): return b.view({"f32": "<u4", "f8": "<u1"}.get(name, "<u2")).reshape(8, 32)
    rows = b[16:].reshape(8, -1)
    return rows if name == "i8" else np.concatenate([rows & 15, rows >> 4], axis=1)


def decode_block(name, b):
    """8 x 32 floats of a block's bytes (f8 without its scale)."""
    codes = codes_of(name, b)
    if name == "f32": return codes.view("<f4")
    if name == "f16": return small_float(codes, 10, 5, 15)
    if name == "bf16": return small_float(codes, 7, 8, 127)
    if name == "f8": return E4M3[codes]
    scales = small_float(b[:16].view("<u2"), 10, 5, 15)
    return scales[:, None] * (codes.view(np.int8) if name == "i8" else CODEBOOKS[name][codes]).astype(np.float32)


def decode(name, stored, n, k):
    tiles, blocks, size = -(-n // 8), -(-k // 32), BLOCK_BYTES[name]
    out, codes = np.zeros((tiles * 8, blocks * 32), np.float32), np.zeros((tiles * 8, blocks * 32), np.uint32)
    for t in range(tiles):
        for b in range(blocks):
            at = (t * blocks + b) * size
            here = np.s_[8 * t:8 * t + 8, 32 * b:32 * b + 32]
            out[here], codes[here] = decode_block(name, stored[at:at + size]), codes_of(name, stored[at:at + size])
    end = tiles * blocks * size
    if name == "f8":
        end = -(-end // 64) * 64
        shape = -(-n // 128), -(-k // 128)
        table = stored[end:end + 4 * shape[0] * shape[1]].view("<f4").reshape(shape)
        end += table.nbytes
        r, c = np.arange(len(out)) // 128, np.arange(out.shape[1]) // 128
        out *= table[np.minimum(r, shape[0] - 1)][:, np.minimum(c, shape[1] - 1)]
    assert end == len(stored)
    assert not codes[n:].any() and not codes[:, k:].any()  # padding is zero bytes
    return out[:n, :k]


def tool(mode, name, n, k, array, tmp_path):
    (tmp_path / "in").write_bytes(array.tobytes())
    run("tools/types_tool", mode, name, n, k, tmp_path / "in", tmp_path / "out")
    return np.fromfile(tmp_path / "out", np.uint8)


def weights(n, k, seed):
    """Rows of very different size, with zeros, zero groups and values that f16 scales cannot reach downwards."""
    r = np.random.default_rng(seed)
    w = r.standard_t(4, (n, k)) * np.exp2(r.integers(-12, 4, (n, 1)))
    w[r.random((n, k)) < 0.05] = 0
    w[0, :32] = 0
    if n > 2: w[2] *= 2.0**-30
    return np.clip(w, -30000, 30000).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_the_pages_blocks(name):
    """The worked blocks of the page, decoded as the page says, are near the formula; f32 is the formula."""
    lines = re.search(rf"```block {name.replace('-', ' ')}\n(.*?)```", PAGE, re.S)[1].splitlines()
    b, known = np.zeros(BLOCK_BYTES[name], np.uint8), np.zeros(BLOCK_BYTES[name], bool)
    for line in lines:
        at, data = line.split(":")
        data = bytes.fromhex(data)
        b[int(at, 16):int(at, 16) + len(data)] = list(data)
        known[int(at, 16):int(at, 16) + len(data)] = True
    got = decode_block(name, b) * (np.float32(1 / 32) if name == "f8" else 1)
    want = (np.arange(32) - 15.5) * (np.arange(8)[:, None] + 1) / 16
    rows = [0, 7] if name in ("f32", "f16", "bf16") else range(8)  # the page shows two rows of the wide types
    assert known.all() or known.sum() == 2 * len(b) // 8
    step = {"f32": 0, "f16": 2**-11, "bf16": 2**-8, "f8": 2**-4, "i8": 0.0041, "c4-linear": 0.076, "c4-nl": 0.12}[name]
    for r in rows:
        exact = name in ("f32", "f16", "bf16", "f8")
        assert (np.abs(got[r] - want[r]) <= step * (np.abs(want[r]) if exact else np.abs(want[r]).max())).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_numpy_reads_what_c_writes(name, shape, tmp_path):
    w = weights(*shape, seed=shape[0])
    stored = tool("quantise", name, *shape, w, tmp_path)
    mine = decode(name, stored, *shape)
    theirs = tool("dequantise", name, *shape, stored, tmp_path).view("<f4").reshape(shape)
    assert mine.tobytes() == theirs.tobytes()
    error = np.sqrt(((w - mine)**2).sum() / max((w**2).sum(), 1e-30))
    assert error <= {"f32": 0, "f16": 3e-4, "bf16": 3e-3, "f8": 0.03, "i8": 0.012, "c4-linear": 0.15, "c4-nl": 0.15}[name]


# ---- the writer's rules ----


def groups_of(w):
    """Groups [rows, groups, 32], and which of their columns belong to the matrix."""
    n, k = w.shape
    padded = np.zeros((-(-n // 8) * 8, -(-k // 32) * 32), np.float32)
    padded[:n, :k] = w
    return padded.reshape(len(padded), -1, 32), (np.arange(padded.shape[1]) < k).reshape(1, -1, 32)


def lanes_sum(x):
    """[..., 32] -> [...]: 8 lanes, then the tree 4, 2, 1, every addition in f32."""
    lanes = np.zeros(x.shape[:-1] + (8,), np.float32)
    for i in range(4): lanes += x[..., 8 * i:8 * i + 8]
    for s in (4, 2, 1): lanes = lanes[..., :s] + lanes[..., s:2 * s]
    return lanes[..., 0]


def nearest(name, x, scale):
    """Values and codes for a scale."""
    with np.errstate(divide="ignore"): inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    v = x * inverse[..., None]
    if name == "c4-linear":
        q = np.rint(np.clip(v, -8, 7))
        return q.astype(np.float32), (q + 8).astype(np.uint8)
    book = CODEBOOKS[name]
    code = (v[..., None] > ((book[:-1] + book[1:]) / 2).astype(np.float32)).sum(-1)
    return book[code].astype(np.float32), code.astype(np.uint8)


def quantise_c4(name, x, real):
    """Scales (f16) and codes of groups [rows, groups, 32]."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
    best, best_error = np.zeros(extreme.shape, np.float16), np.full(extreme.shape, np.inf, np.float32)

    def attempt(scale, allowed):
        nonlocal best, best_error
        h = scale.astype(np.float16)
        s = h.astype(np.float32)
        q, _ = nearest(name, x, np.where(np.isfinite(s), s, 0).astype(np.float32))
        e = np.where(real, x - q * np.where(np.isfinite(s), s, 0)[..., None].astype(np.float32), np.float32(0))
        error = lanes_sum(e * e)
        take = np.isfinite(s) & (error < best_error) & allowed
        best, best_error = np.where(take, h, best), np.where(take, error, best_error)

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for d in DIVISORS[name]: attempt(extreme / np.float32(d), True)
        q = np.where(real, nearest(name, x, best.astype(np.float32))[0], np.float32(0))
        attempt(lanes_sum(x * q) / lanes_sum(q * q), best != 0)
    _, code = nearest(name, x, best.astype(np.float32))
    zero = best == 0
    return np.where(zero, np.float16(0), best), np.where(zero[..., None] | ~real, 0, code).astype(np.uint8)


def quantise_i8(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (np.abs(x).max(-1) / np.float32(127)).astype(np.float16)
        q = np.clip(np.rint(x / scale.astype(np.float32)[..., None]), -127, 127)
    return scale, np.where((scale == 0)[..., None], 0, q).astype(np.int8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["i8", "c4-linear", "c4-nl"])
def test_numpy_writes_the_same_bytes(name, shape, tmp_path):
    w = weights(*shape, seed=100 + shape[1])
    x, real = groups_of(w)
    scale, code = quantise_i8(x) if name == "i8" else quantise_c4(name, x, real)
    payload = code.view(np.uint8) if name == "i8" else code[..., :16] | code[..., 16:] << 4
    tiles = lambda a: a.reshape(len(a) // 8, 8, *a.shape[1:]).swapaxes(1, 2)  # [tile, block, row, ...]
    head = np.ascontiguousarray(tiles(scale)).view(np.uint8).reshape(len(x) // 8, x.shape[1], 16)
    want = np.concatenate([head, tiles(payload).reshape(*head.shape[:2], -1)], -1)
    got = tool("quantise", name, *shape, w, tmp_path)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_f8_scales_and_elements(shape, tmp_path):
    w = weights(*shape, seed=7)
    stored = tool("quantise", "f8", *shape, w, tmp_path)
    finite = np.sort(E4M3[:0x7f].astype(np.float64))
    across = -(-shape[0] // 128), -(-shape[1] // 128)
    table = stored[-4 * across[0] * across[1]:].view("<f4").reshape(across)
    decoded = decode("f8", stored, *shape)
    for i in range(across[0]):
        for j in range(across[1]):
            block = np.s_[128 * i:128 * i + 128, 128 * j:128 * j + 128]
            absmax, s = float(np.abs(w[block]).max()), float(table[i, j])
            assert np.frexp(s)[0] == 0.5  # a power of two, and the smallest
            assert (absmax == 0 and s == 1) or (448 * s >= absmax > 448 * s / 2)
            v = np.abs(w[block].astype(np.float64)) / s
            distance = np.abs(finite - v[..., None])
            assert (np.abs(np.abs(decoded[block]) / s - v) == distance.min(-1)).all()


@pytest.mark.parametrize("value, text", [(np.nan, "not a finite number"), (np.inf, "not a finite number"), (1e30, "too large")])
def test_bad_values_are_named(value, text, tmp_path):
    w = np.ones((20, 50), np.float32)
    w[13, 41] = value
    w.tofile(tmp_path / "in")
    for name in FORMATS:
        if value == 1e30 and name in ("f32", "bf16", "f8"): continue
        p = subprocess.run([f"{BUILD}/tools/types_tool", "quantise", name, "20", "50", tmp_path / "in", tmp_path / "out"], capture_output=True, text=True)
        assert p.returncode == 1 and "tile 1" in p.stderr and "row 5, column 41" in p.stderr and text in p.stderr
        assert not (tmp_path / "out").exists()

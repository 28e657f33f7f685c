"""Storage types, read and written by numpy from docs/arithmetic.md alone, against the C code (types_tool)."""
import re, subprocess
import numpy as np
import pytest

from support import BUILD, run

PAGE = open("docs/arithmetic.md").read()
PARTS = {"f32": (0, 0, 1024, 0), "f16": (0, 0, 512, 0), "bf16": (0, 0, 512, 0), "f8": (0, 0, 256, 0), "i8": (16, 0, 256, 0),
         "s5": (16, 0, 128, 32), "s6": (16, 0, 128, 64), "z4": (16, 8, 128, 0), "a4": (16, 16, 128, 0)}  # scales, offsets, codes, high bits
for book in ("linear", "nl", "e2m1"):
    PARTS |= {f"c4-{book}": (16, 0, 128, 0), f"c4-{book}-e8m0": (8, 0, 128, 0), f"c4-{book}-e4m3": (16, 0, 128, 0)}
FORMATS = list(PARTS)
FLOATS = FORMATS[:4]
ON_PAGE = [n for n in FORMATS if n not in ("c4-linear-e8m0", "c4-linear-e4m3", "c4-nl-e8m0", "c4-nl-e4m3")]
BLOCK_BYTES = {n: sum(p) for n, p in PARTS.items()}
CODEBOOKS = {"linear": np.arange(-8, 8), "nl": np.array([int(v) for v in re.search(r"`nl` = ([-0-9, ]+)\.", PAGE)[1].split(",")])}
half = np.array([int(v) for v in re.search(r"`e2m1` = ([0-9, ]+), then", PAGE)[1].split(",")])
CODEBOOKS["e2m1"] = np.concatenate([half, -half])
DIVISORS = {"c4-linear": [-8, 7.2, -8.8], "c4-nl": [-127, 118, -134], "c4-e2m1": [12, 13.4, 10.6], "s5": [-16, 15.2, -16.8], "s6": [-32, 31.2, -32.8]}
TOP = {"linear": 7, "nl": 113, "e2m1": 6}
BITS = {"s5": 5, "s6": 6}
SHAPES = [(1, 1), (8, 32), (9, 33), (3, 127), (17, 128), (130, 140), (129, 257), (264, 96)]


def small_float(codes, m_bits, e_bits, bias):
    """Finite values of a small float from its fields."""
    codes = codes.astype(np.int64)
    m, e, sign = codes & ((1 << m_bits) - 1), codes >> m_bits & ((1 << e_bits) - 1), codes >> (m_bits + e_bits)
    v = np.where(e > 0, np.ldexp(1 + m / 2**m_bits, e - bias), np.ldexp(m / 2**m_bits, 1 - bias))
    return np.where(sign == 1, -v, v).astype(np.float32)


E4M3 = small_float(np.arange(256), 3, 4, 7)
E4M3[[0x7f, 0xff]] = np.nan


def book_of(name):
    return CODEBOOKS[name.split("-")[1]] if name.startswith("c4") else None


def split(name, b):
    at = np.cumsum((0,) + PARTS[name])
    return [b[i:j] for i, j in zip(at, at[1:])]


def codes_of(name, b):
    """8 x 32 stored codes of a block's bytes."""
    _, _, codes, high = split(name, b)
    if name in FLOATS: return codes.view({"f32": "<u4", "f8": "<u1"}.get(name, "<u2")).reshape(32, 8).T
    out = np.zeros((8, 32), np.uint8)
    for r in range(8):
        for c in range(32):
            if name == "i8":
                out[r, c] = codes[32 * (c // 4) + 4 * r + c % 4]
                continue
            j, at = c % 16 // 4, 4 * r + c % 4
            out[r, c] = codes[32 * j + at] >> (4 if c >= 16 else 0) & 15
            if name == "s5": out[r, c] |= (high[at] >> (j if c < 16 else 4 + j) & 1) << 4
            if name == "s6": out[r, c] |= (high[at + (0 if c < 16 else 32)] >> 2 * j & 3) << 4
    return out


def pack(name, code):
    """The bytes of codes [8, 32], high bits included: the inverse of codes_of for integer types."""
    _, _, n, m = PARTS[name]
    codes, high = np.zeros(n, np.uint8), np.zeros(m, np.uint8)
    for r in range(8):
        for c in range(32):
            v = int(code[r, c])
            if name == "i8":
                codes[32 * (c // 4) + 4 * r + c % 4] = v
                continue
            j, at = c % 16 // 4, 4 * r + c % 4
            codes[32 * j + at] |= (v & 15) << (4 if c >= 16 else 0)
            if name == "s5": high[at] |= (v >> 4) << (j if c < 16 else 4 + j)
            if name == "s6": high[at + (0 if c < 16 else 32)] |= (v >> 4) << 2 * j
    return np.concatenate([codes, high])


def decode_block(name, b):
    """8 x 32 floats of a block's bytes (without the table behind the matrix)."""
    codes, (scales, offsets, _, _) = codes_of(name, b), split(name, b)
    if name == "f32": return np.ascontiguousarray(codes).view("<f4")
    if name == "f16": return small_float(codes, 10, 5, 15)
    if name == "bf16": return small_float(codes, 7, 8, 127)
    if name == "f8": return E4M3[codes]
    if name.endswith("e8m0"): scale = np.ldexp(np.float32(1), scales.astype(int) - 127)[:, None].repeat(32, 1)
    elif name.endswith("e4m3"): scale = np.concatenate([E4M3[scales[:8], None].repeat(16, 1), E4M3[scales[8:], None].repeat(16, 1)], 1)
    else: scale = small_float(scales.view("<u2"), 10, 5, 15)[:, None].repeat(32, 1)
    if name == "i8": q = codes.view(np.int8)
    elif name in BITS: q = np.where(codes < 1 << BITS[name] - 1, codes.astype(int), codes.astype(int) - (1 << BITS[name]))
    elif name == "z4": q = codes.astype(int) - offsets[:, None]
    elif name == "a4": q = codes
    else: q = book_of(name)[codes]
    if "e2m1" in name: scale = scale / np.float32(2)
    v = scale * q.astype(np.float32)
    return v + small_float(offsets.view("<u2"), 10, 5, 15)[:, None] if name == "a4" else v


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
    if name.endswith("e4m3"):
        end = -(-end // 64) * 64
        out *= stored[end:end + 4].view("<f4")
        end += 4
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


@pytest.mark.parametrize("name", ON_PAGE)
def test_the_pages_blocks(name):
    """The worked blocks of the page, decoded as the page says, are near the formula; f32 is the formula."""
    lines = re.search(rf"```block {name.replace('-', ' ')}\n(.*?)```", PAGE, re.S)[1].splitlines()
    b, known = np.zeros(BLOCK_BYTES[name], np.uint8), np.zeros(BLOCK_BYTES[name], bool)
    for line in lines:
        at, data = line.split(":")
        data = bytes.fromhex(data)
        b[int(at, 16):int(at, 16) + len(data)] = list(data)
        known[int(at, 16):int(at, 16) + len(data)] = True
    got = decode_block(name, b) * np.float32(1 / 32 if name == "f8" else 7.75 / 6 / 448 if name.endswith("e4m3") else 1)
    want = (np.arange(32) - 15.5) * (np.arange(8)[:, None] + 1) / 16
    element = len(b) // 256  # bytes; the page shows the first and the last 64 bytes of the wide types
    columns = range(32) if known.all() else [c for c in range(32) if known[8 * c * element:8 * (c + 1) * element].all()]
    assert known.all() or (name in ("f32", "f16", "bf16") and known.sum() == 128 and len(columns) == 128 // 8 // element)
    step = {"f32": 0, "f16": 2**-11, "bf16": 2**-8, "f8": 2**-4, "i8": 0.0041, "s6": 0.04, "s5": 0.08, "c4-linear": 0.076, "c4-nl": 0.12,
            "z4": 0.1, "a4": 0.1, "c4-e2m1": 0.19, "c4-e2m1-e8m0": 0.27, "c4-e2m1-e4m3": 0.19}[name]
    for r in range(8):
        for c in columns:
            assert abs(got[r, c] - want[r, c]) <= step * (abs(want[r, c]) if name in FLOATS else np.abs(want[r]).max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_numpy_reads_what_c_writes(name, shape, tmp_path):
    w = weights(*shape, seed=shape[0])
    stored = tool("quantise", name, *shape, w, tmp_path)
    mine = decode(name, stored, *shape)
    theirs = tool("dequantise", name, *shape, stored, tmp_path).view("<f4").reshape(shape)
    assert mine.tobytes() == theirs.tobytes()
    error = np.sqrt(((w - mine)**2).sum() / max((w**2).sum(), 1e-30))
    assert error <= {"f32": 0, "f16": 3e-4, "bf16": 3e-3, "f8": 0.03, "i8": 0.012, "s6": 0.04, "s5": 0.08}.get(name, 0.22 if "e" in name[3:] else 0.15)


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
    if name != "c4-nl":
        low = {"c4-linear": -8, "s5": -16, "s6": -32}.get(name, -12)
        q = np.rint(np.clip(v, low, 12 if low == -12 else -1 - low))
        if name == "c4-linear": return q.astype(np.float32), (q + 8).astype(np.uint8)
        if name in BITS: return q.astype(np.float32), q.astype(np.int64).astype(np.uint8) & (1 << BITS[name]) - 1
        v = np.clip(v, -12, 12)
        for at, step in ((4, 2), (8, 4)): q = np.where(np.abs(v) >= at, np.rint(v / np.float32(step)) * step, q)
        code = np.searchsorted(CODEBOOKS["e2m1"][:8], np.abs(q))
        return q.astype(np.float32), np.where(q < 0, code + 8, code).astype(np.uint8)
    book = CODEBOOKS["nl"]
    code = (v[..., None] > ((book[:-1] + book[1:]) / 2).astype(np.float32)).sum(-1)
    return book[code].astype(np.float32), code.astype(np.uint8)


def quantise_f16(name, x, real):
    """Scales (f16) and codes of groups [rows, groups, 32]."""
    unit = np.float32(0.5 if name == "c4-e2m1" else 1)
    extreme = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
    best, best_error = np.zeros(extreme.shape, np.float16), np.full(extreme.shape, np.inf, np.float32)

    def attempt(scale, allowed):
        nonlocal best, best_error
        h = (scale / unit).astype(np.float16)
        s = h.astype(np.float32) * unit
        q, _ = nearest(name, x, np.where(np.isfinite(s), s, 0).astype(np.float32))
        e = np.where(real, x - q * np.where(np.isfinite(s), s, 0)[..., None].astype(np.float32), np.float32(0))
        error = lanes_sum(e * e)
        take = np.isfinite(s) & (error < best_error) & allowed
        best, best_error = np.where(take, h, best), np.where(take, error, best_error)

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for d in DIVISORS[name]: attempt(extreme / np.float32(d), True)
        q = np.where(real, nearest(name, x, best.astype(np.float32) * unit)[0], np.float32(0))
        attempt(lanes_sum(x * q) / lanes_sum(q * q), best != 0)
    _, code = nearest(name, x, best.astype(np.float32) * unit)
    zero = best == 0
    return np.where(zero, np.float16(0), best), np.where(zero[..., None] | ~real, 0, code).astype(np.uint8)


def quantise_i8(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (np.abs(x).max(-1) / np.float32(127)).astype(np.float16)
        q = np.clip(np.rint(x / scale.astype(np.float32)[..., None]), -127, 127)
    return scale, np.where((scale == 0)[..., None], 0, q).astype(np.int8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["i8", "c4-linear", "c4-nl", "c4-e2m1", "s5", "s6"])
def test_numpy_writes_the_same_bytes(name, shape, tmp_path):
    w = weights(*shape, seed=100 + shape[1])
    x, real = groups_of(w)
    scale, code = quantise_i8(x) if name == "i8" else quantise_f16(name, x, real)
    code = code.view(np.uint8)
    want = np.concatenate([np.concatenate([np.ascontiguousarray(scale[t:t + 8, g]).view(np.uint8), pack(name, code[t:t + 8, g])])
                           for t in range(0, len(x), 8) for g in range(x.shape[1])])
    got = tool("quantise", name, *shape, w, tmp_path)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in FLOATS])
def test_importance_and_small_ranges_stay_near(name, tmp_path):
    """No rule of the page for these scales is written out here: the error must stay below that of the plain choice."""
    w = weights(64, 96, seed=5)
    got = decode(name, tool("quantise", name, 64, 96, w, tmp_path), 64, 96)
    x, y = w.reshape(64, 3, 32).astype(np.float64), got.reshape(64, 3, 32).astype(np.float64)
    levels = {"i8": 127, "s5": 15, "s6": 31, "z4": 7, "a4": 7}.get(name, 2.2 if "e8m0" in name else 3)
    step = np.maximum(np.abs(x).max(-1), np.abs(w).max() * 2.0**-12)  # e4m3 cannot follow rows that are much smaller
    assert (np.sqrt(((x - y)**2).mean(-1)) <= step / levels * 0.45 + 2.0**-24).all()


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
        if value == 1e30 and (name in ("f32", "bf16", "f8") or name.endswith(("e8m0", "e4m3"))): continue
        p = subprocess.run([f"{BUILD}/tools/types_tool", "quantise", name, "20", "50", tmp_path / "in", tmp_path / "out"], capture_output=True, text=True)
        assert p.returncode == 1 and "tile 1" in p.stderr and "row 5, column 41" in p.stderr and text in p.stderr
        assert not (tmp_path / "out").exists()

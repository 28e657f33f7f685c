"""Containers made by the C writer (tests/tools/container_tool.c), read by the independent reader: docs/container.md is
complete and the writer obeys it."""
import os, random, re, shutil, struct, subprocess

import numpy as np
import pytest
import xxhash, zstandard

from ninfer_reader import Container, FormatError
from support import BUILD, MODEL

MASK = (1 << 64) - 1
PARTS = [0, 2_300_000]


def tool(*args):
    subprocess.run([f"{BUILD}/tools/container_tool", *map(str, args)], check=True, capture_output=True, text=True)


def content(name, seed, n):
    """The bytes that the tool writes."""
    key = 0xcbf29ce484222325
    for b in name.encode():
        key = (key ^ b) * 0x100000001b3 & MASK
    h = (np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
         + np.uint64((key + seed * 0xD1B54A32D192ED03) & MASK))
    h = (h ^ h >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    return ((h >> np.uint64(62)) + np.uint64(97) if name == "words" else h >> np.uint64(56)).astype(np.uint8).tobytes()


# name: kind, type, codebook, tiled, shape, component, stored bytes (None: depends on zstd)
EXPECT = {
    "norm": ("tensor", "f32", 0, False, (37,), "text", 148),
    "scalar": ("tensor", "f32", 0, False, (), "text", 4),
    "nothing": ("tensor", "bf16", 0, False, (0, 9), "text", 0),
    "half": ("tensor", "bf16", 0, False, (3, 5), "text", 30),
    "tiled.f32": ("tensor", "f32", 0, True, (9, 33), "text", 2 * 2 * 1024),
    "tiled.f16": ("tensor", "f16", 0, True, (17, 40), "text", 3 * 2 * 512),
    "tiled.bf16": ("tensor", "bf16", 0, True, (8, 32), "text", 512),
    "tiled.f8": ("tensor", "f8", 0, True, (300, 260), "text", 38 * 9 * 256 + 9 * 4),
    "tiled.i8": ("tensor", "i8", 0, True, (2500, 1200), "text", 313 * 38 * 272),
    "tiled.linear": ("tensor", "c4", 1, True, (21, 70), "text", 3 * 3 * 144),
    "tiled.nl": ("tensor", "c4", 2, True, (1, 1), "text", 144),
    # gate and up: 8 tiles of 5 blocks of 144 each; down: 20 tiles of 2 blocks of 272
    "bank.c4": ("bank", "c4", 1, False, (30, 64, 160), "text", 30 * 24576),
    # gate and up: 3 tiles of 5 blocks of 256; down: 17 tiles of 1 block: 12032; three tables of 2 floats, each on 64: 12168
    "bank.f8": ("bank", "f8", 0, False, (3, 24, 136), "text", 3 * 12288),
    "bank.mixed": ("bank", "i8", 0, False, (2, 40, 72), "text", 2 * 12288),
    "rows.c4": ("row table", "c4", 2, False, (50, 100), "ngram", 2 * 4096),
    "rows.i8": ("row table", "i8", 0, False, (70, 96), "ngram", 4 * 4096),
    "rows.f8": ("row table", "f8", 0, False, (7, 200), "ngram", 4096),
    "rows.f32": ("row table", "f32", 0, False, (3, 1100), "ngram", 3 * 4416),
    "words": ("blob", "u8", 0, False, (50000,), "tokenizer", None),
    "noise": ("blob", "u8", 0, False, (5001,), "tokenizer", 5001),
    "empty": ("blob", "u8", 0, False, (0,), "tokenizer", 0),
}


def expect_object(c, name, seed, expect):
    o = c.objects[name]
    assert (o.kind, o.type, o.codebook, o.tiled, o.shape, o.component) == expect[:6], name
    if o.kind == "blob":
        assert c.blob(name) == content(name, seed, expect[4][0])
        assert o.compressed == (name == "words")
    else:
        assert c.stored(o) == content(name, seed, o.bytes)
    if expect[6] is not None:
        assert o.bytes == expect[6], name


@pytest.mark.parametrize("part_bytes", PARTS)
def test_all_objects(tmp_path, part_bytes):
    path = str(tmp_path / "m.ninfer")
    tool("create", path, part_bytes, 7)
    with Container(path) as c:
        assert len(c.parts) == len(list(tmp_path.iterdir()))
        assert (len(c.parts) >= 4) == bool(part_bytes)
        assert c.generation == 1
        assert c.uuid[6] >> 4 == 4 and c.uuid[8] >> 6 == 2
        assert c.metadata == {"model.name": "modèle d'essai", "empty": ""}
        assert [o.name for o in c.list] == list(EXPECT) + ["checksums.1"]
        for name, expect in EXPECT.items():
            expect_object(c, name, 7, expect)
        assert c.objects["norm"].metadata == '{"eps": 1e-6}' and c.objects["half"].metadata is None
        assert c.verify() == [] and c.retired == []
        if part_bytes:
            assert len(c.objects["bank.c4"].segments) > 1 or len(c.objects["tiled.i8"].segments) > 1
            assert all(length <= part_bytes for _, length in c.parts)


@pytest.mark.parametrize("part_bytes", PARTS)
def test_append(tmp_path, part_bytes):
    path = str(tmp_path / "m.ninfer")
    tool("create", path, part_bytes, 7)
    old = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    for n, seed in enumerate((8, 9, 10, 11)):
        tool("append", path, part_bytes, seed)
        with Container(path) as c:
            assert c.generation == n + 2
            assert c.metadata["model.name"] == "renamed"
            replaced = {"bank.c4": EXPECT["bank.c4"], "words": ("blob", "u8", 0, False, (40000,), "tokenizer", None),
                        "extra": ("tensor", "i8", 0, True, (64, 64), "mtp", 8 * 2 * 272)}
            for name, expect in (EXPECT | replaced).items():
                expect_object(c, name, seed if name in replaced else 7, expect)
            assert c.verify() == []
            assert c.retired
    for name, data in old.items():
        now = (tmp_path / name).read_bytes()
        if name == "m.ninfer":
            assert now[:4096] == data[:4096] and now[12288:c.parts[0][1]] == data[12288:c.parts[0][1]]
        else:
            assert now == data


def test_parts_of_two_addons_do_not_mix(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    tool("create", a / "m.ninfer", 0, 1)
    shutil.copytree(a, b)
    for folder in (a, b):
        tool("append", folder / "m.ninfer", 0, 2)
    shutil.copy(b / "m.ninfer.part-0001", a)
    with pytest.raises(FormatError, match="part-0001: is of another add-on"):
        Container(str(a / "m.ninfer"))


@pytest.mark.parametrize("part_bytes", PARTS)
def test_flipped_bytes_are_found(tmp_path, part_bytes):
    """The reader finds what it should, so that its silence above means something."""
    path = str(tmp_path / "m.ninfer")
    tool("create", path, part_bytes, 7)
    with Container(path) as c:
        places = [(p, o) for p, o, n in c.everything] + [(p, o + n - 1) for p, o, n in c.everything]
        places += [(p, a) for p, a, b in c.padding() if a < b and a < os.path.getsize(c.part_path(p))]
        places += [(p, at) for p in range(len(c.parts)) for at in (0, 20, 60, 100, 4095)]
        places += [(0, c.directory_at), (0, c.directory_end - 1), (0, 4100)]
    for part, at in places:
        with open(f"{path}.part-{part:04d}" if part else path, "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 0x10]))
            f.flush()
            try:
                with Container(path) as c:
                    assert c.verify(), (part, at)
            except FormatError:
                pass
            f.seek(at)
            f.write(bytes([byte]))
    with Container(path) as c:
        assert c.verify() == []


# ---- matrices ------------------------------------------------------------------------------------------------

def by_reference_code(path, name, out):
    tool("dequantise", path, name, out)
    return np.fromfile(out, "<f4")


def weight(rows, cols):
    r, c = np.arange(rows)[:, None], np.arange(cols)
    return ((r * 31 + c * 17) % 101 - 50).astype(np.float32) / 64


def test_dequantisation_of_random_bytes(tmp_path):
    """Any bytes at all, with odd scales, NaN and infinities among them: equal bit for bit but for the payload of NaN."""
    path = str(tmp_path / "m.ninfer")
    tool("create", path, 0, 3)
    with Container(path) as c:
        for o in c.list:
            if o.tiled:
                mine = c.matrix(o.name).reshape(-1)
            elif o.kind == "bank":
                mine = np.concatenate([c.expert(o.name, e, m).reshape(-1) for e in range(o.experts) for m in range(3)])
            else:
                continue
            assert np.array_equal(mine, by_reference_code(path, o.name, tmp_path / "out"), equal_nan=True), o.name


def test_dequantisation_of_weights(tmp_path):
    """Values whose quantisation error is bounded by the type."""
    path = str(tmp_path / "m.ninfer")
    tool("weights", path)
    # f8: half a unit of 3 bits of mantissa below 50/64; i8: half a step of absmax/127; c4: absmax/8 or wider steps of nl.
    bound = {"f32": 0, "f16": 0, "bf16": 0, "f8": 1 / 32, "i8": 50 / 64 / 127 / 2 * 1.01, "linear": 0.08, "nl": 0.1,
             "z4": 0.1, "a4": 0.1, "s5": 0.035, "s6": 0.017, "e2m1": 0.17, "mxfp4": 0.26, "nvfp4": 0.17}
    with Container(path) as c:
        for type, limit in bound.items():
            assert np.abs(c.matrix(f"weights.{type}") - weight(205, 300)).max() <= limit, type
            for e in range(2):
                for m, shape in enumerate([(136, 200), (136, 200), (200, 136)]):
                    assert np.abs(c.expert(f"experts.{type}", e, m) - weight(*shape)).max() <= limit, (type, m)
            mine = np.concatenate([c.expert(f"experts.{type}", e, m).reshape(-1) for e in range(2) for m in range(3)])
            assert np.array_equal(mine, by_reference_code(path, f"experts.{type}", tmp_path / "out"))


def test_rows(tmp_path):
    path = str(tmp_path / "m.ninfer")
    tool("create", path, 0, 7)
    with Container(path) as c:
        data = content("rows.f32", 7, 3 * 4416)
        for r in range(3):
            want = np.frombuffer(data, "<f4", 1100, r * 4416)
            assert np.array_equal(c.row("rows.f32", r), want, equal_nan=True)
        # 21 rows of 192 bytes in 4096: row 22 is the second one of the second block.
        data = content("rows.i8", 7, 4 * 4096)
        scale = np.frombuffer(data, "<f2", 3, 4096 + 192).astype(np.float32)
        want = np.frombuffer(data, np.int8, 96, 4096 + 192 + 64).astype(np.float32).reshape(3, 32) * scale[:, None]
        assert np.array_equal(c.row("rows.i8", 22), want.reshape(-1), equal_nan=True)
        for name in ("rows.c4", "rows.f8"):
            assert c.row(name, c.objects[name].shape[0] - 1).shape == (c.objects[name].shape[1],)


# ---- both readers --------------------------------------------------------------------------------------------

def forge(path, directory_at, directory):
    """Gives a container another directory with valid checksums around it. Generation and UUID stay."""
    frame = zstandard.ZstdCompressor(1).compress(directory)
    with open(path, "r+b") as f:
        f.seek(4096)
        slot = bytearray(f.read(4096))
        struct.pack_into("<QQ16s", slot, 24, len(frame), len(directory), xxhash.xxh3_128_digest(frame))
        slot[4080:] = xxhash.xxh3_128_digest(bytes(slot[:4080]))
        f.seek(4096)
        f.write(slot)
        f.seek(directory_at)
        f.write(frame)
        f.truncate()


def number_places(directory):
    """Offsets of the 4-byte words of a directory outside texts, roughly: where a change means something."""
    return [at for at in range(0, len(directory) - 4) if directory[at + 2:at + 4] == b"\0\0"]


def mutants(directory, rng, n):
    places, edges = number_places(directory), [0, 1, 2, 7, 64, 4095, 4096, 4160, 12288, 1 << 20, 0x7fffffff, 0xffffffff]
    for i in range(n):
        d = bytearray(directory)
        for _ in range(rng.choice([1, 1, 1, 2])):
            at, kind = rng.choice(places), rng.randrange(5)
            if kind == 0:
                d[rng.randrange(len(d))] ^= 1 << rng.randrange(8)
            elif kind == 1:
                d[at] ^= 1 << rng.randrange(8)
            elif kind == 2:
                struct.pack_into("<I", d, at, rng.choice(edges))
            elif kind == 3:
                struct.pack_into("<I", d, at, (struct.unpack_from("<I", d, at)[0] + rng.choice([-64, -1, 1, 8, 64, 4096])) & 0xffffffff)
            else:
                other = rng.choice(places)
                d[at:at + 4] = d[other:other + 4]
        yield bytes(d)


def verdict_of(path):
    try:
        Container(path).close()
        return "ok"
    except FormatError as e:
        return f"refused: {e}"


def test_both_readers_refuse_the_same(tmp_path, n=400, seed=20261201):
    """Forged directories with valid checksums. Where the readers disagree, one of them or the document is wrong."""
    path = str(tmp_path / "m.ninfer")
    tool("create", path, 0, 7)
    tool("append", path, 0, 8)
    tool("append", path, 0, 9)  # slot A is in force again, and there are retired segments
    with Container(path) as c:
        directory, at = c.directory, c.directory_at
    accepted, differ = 0, []
    for i, mutant in enumerate(mutants(directory, random.Random(seed), n)):
        forge(path, at, mutant)
        mine = verdict_of(path)
        theirs = subprocess.run([f"{BUILD}/tools/container_tool", "open", path], check=True, capture_output=True, text=True)
        accepted += mine == "ok"
        if (mine == "ok") != (theirs.stdout == "ok\n"):
            differ.append((i, mine, theirs.stdout))
    assert not differ, differ[:10]
    assert n / 20 < accepted < n * 19 / 20


# ---- the document --------------------------------------------------------------------------------------------

def test_example_of_the_document(tmp_path):
    """The bytes that docs/container.md prints are those that the writer makes."""
    document = open("docs/container.md", encoding="utf-8").read()
    printed = document[document.index("and the directory's content"):]
    tokens = [t for line in printed.splitlines() if line.startswith("    ")
              for t in re.match(r"\s*((?:(?:[0-9a-f]{2}|UUID|ID|SUM)\s+)*(?:[0-9a-f]{2}|UUID|ID|SUM))?(?=\s|$)", line)[0].split()]
    path = str(tmp_path / "m.ninfer")
    tool("example", path)
    with Container(path) as c:
        data = open(path, "rb").read()
        values = bytes.fromhex("0000803f00000040")
        table = xxhash.xxh3_128_digest(values)
        names = {"UUID": c.uuid, "ID": c.parts[0][0], "SUM": xxhash.xxh3_128_digest(table)}
        want = b"".join(names.get(t) or bytes.fromhex(t) for t in tokens)
        assert c.directory == want
        assert data[12288:20480] == values + bytes(4088) + table + bytes(4080)
        assert c.directory_at == 20480 and len(data) == 24576
        assert not any(data[8192:12288])
        assert list(c.matrix("t")) == [1, 2]


def test_converted_model(tmp_path):
    """What ninfer-convert makes of the embedded model, in one part and in many."""
    for extra in ((), ("--max-file-gb", "0.004")):
        path = str(tmp_path / f"m{len(extra)}.ninfer")
        subprocess.run([f"{BUILD}/ninfer-convert", MODEL, path, *extra], check=True, capture_output=True)
        with Container(path) as c:
            assert c.verify() == []
            assert len(c.parts) >= 5 if extra else len(c.parts) == 1
            assert any(o.kind == "bank" for o in c.list)

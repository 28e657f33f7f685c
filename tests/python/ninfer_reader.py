"""An independent reader of .ninfer containers, written from docs/container.md and docs/arithmetic.md alone. Not fast; checks what it reads."""
import os, struct
import numpy as np
import xxhash, zstandard

TYPES = {0: "f32", 1: "f16", 2: "bf16", 3: "f8", 4: "i8", 5: "c4", 6: "u8"}
KINDS = {0: "tensor", 1: "bank", 2: "rows", 3: "blob"}
BLOCK_BYTES = {"f32": 1024, "f16": 512, "bf16": 512, "f8": 256, "i8": 272, "c4": 144}
CODEBOOKS = {1: np.arange(-8, 8), 2: np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])}


class Damaged(Exception): pass


def check(ok, what):
    if not ok: raise Damaged(what)


def xxh128(data): return xxhash.xxh3_128_digest(data)


class Cursor:
    def __init__(self, data): self.data, self.at = data, 0
    def bytes(self, n):
        check(self.at + n <= len(self.data), "directory is cut")
        self.at += n
        return self.data[self.at - n:self.at]
    def int(self, n): return int.from_bytes(self.bytes(n), "little")
    def text(self, n): return self.bytes(self.int(n)).decode()


class Container:
    def __init__(self, path):
        self.path = path
        self.files = [open(path, "rb")]
        self.uuid, part0 = self._head(0)
        slots = [s for s in (self._slot(4096), self._slot(8192)) if s]
        check(slots, "no valid slot")
        slot = max(slots, key=lambda s: s["generation"])
        stored = self._read(0, slot["offset"], slot["stored"])
        check(xxh128(stored) == slot["hash"], "directory checksum")
        raw = zstandard.ZstdDecompressor().decompress(stored, max_output_size=slot["raw"])
        check(len(raw) == slot["raw"], "directory size")
        self._directory(Cursor(raw), slot["generation"], part0)

    def part_path(self, i): return self.path if i == 0 else f"{self.path}.part-{i:04d}"

    def _read(self, part, offset, n):
        f = self.files[part]
        f.seek(offset)
        data = f.read(n)
        check(len(data) == n, f"{self.part_path(part)} is cut")
        return data

    def _head(self, part):
        block = self._read(part, 0, 4096)
        check(block[:8] == b"NINFER\r\n" and xxh128(block[:4080]) == block[4080:], f"head of part {part}")
        check(struct.unpack_from("<HHI", block, 8)[0] == 1 and struct.unpack_from("<I", block, 12)[0] == part, "version or part number")
        return block[16:32], block[32:48]

    def _slot(self, at):
        block = self._read(0, at, 4096)
        if block[:8] != b"NFSLOT\r\n" or xxh128(block[:4080]) != block[4080:] or block[56:72] != self.uuid: return None
        g, o, s, r = struct.unpack_from("<4Q", block, 8)
        return dict(generation=g, offset=o, stored=s, raw=r, hash=block[40:56])

    def _directory(self, c, generation, part0):
        check(c.int(4) == 1, "directory version")
        c.int(4)
        check(c.int(8) == generation, "generation")
        check(c.bytes(16) == self.uuid, "set id")
        n_parts, n_components, n_objects, n_meta = (c.int(4) for _ in range(4))
        self.generation, self.parts = generation, [(c.bytes(16), c.int(8)) for _ in range(n_parts)]
        for i in range(1, n_parts):
            self.files.append(open(self.part_path(i), "rb"))
            check(self._head(i) == (self.uuid, self.parts[i][0]), f"id of part {i}")
        check(self.parts[0][0] == part0, "id of part 0")
        components = [c.text(2) for _ in range(n_components)]
        self.objects = {}
        self.order = []
        for _ in range(n_objects):
            r = Cursor(c.bytes(c.int(4)))
            o = dict(name=r.text(2), component=components[r.int(2)], kind=KINDS[r.int(1)], type=TYPES[r.int(1)], codebook=r.int(1))
            flags, dims, segments = r.int(1), r.int(2), r.int(2)
            o.update(tiled=bool(flags & 1), compressed=bool(flags & 2), shape=[r.int(8) for _ in range(dims)], bytes=r.int(8), raw_bytes=r.int(8))
            o["segments"] = [(r.int(4), r.int(8), r.int(8)) for _ in range(segments)]
            o.update(hash=r.bytes(16), table=r.int(4), first=r.int(8), count=r.int(8), experts=r.int(8), stride=r.int(8))
            o["matrices"] = [dict(type=TYPES[r.int(1)], codebook=r.int(1), rows=r.int(8), cols=r.int(8), offset=r.int(8), tile_stride=r.int(8), scales=r.int(8)) for _ in range(3)]
            o.update(row_stride=r.int(8), row_scales=r.int(8), metadata=r.text(4))
            check(o["name"] not in self.objects, "duplicate name")
            self.objects[o["name"]] = o
            self.order.append(o)
        self.meta = {c.text(2): c.text(4) for _ in range(n_meta)}

    def data(self, name):
        """Stored bytes of an object, decompressed for blobs."""
        o = self.objects[name]
        data = b"".join(self._read(p, a, n) for p, a, n in o["segments"])
        check(len(data) == o["bytes"], "object size")
        if o["kind"] == "blob":
            check(xxh128(data) == o["hash"], f"checksum of {name}")
            if o["compressed"]: data = zstandard.ZstdDecompressor().decompress(data, max_output_size=o["raw_bytes"])
            check(len(data) == o["raw_bytes"], "blob size")
        return data

    def check_object(self, name):
        o = self.objects[name]
        if o["kind"] == "blob": return self.data(name)
        table = self.data(self.order[o["table"]]["name"])
        entries = [table[16 * i:16 * i + 16] for i in range(o["first"], o["first"] + o["count"])]
        if o["kind"] == "bank":
            data = self.data(name)
            chunks = [data[i * o["stride"]:(i + 1) * o["stride"]] for i in range(o["experts"])]
        else:
            chunks = []
            for p, a, n in o["segments"]:
                chunks += [self._read(p, a + i, min(1 << 26, n - i)) for i in range(0, n, 1 << 26)]
        check([xxh128(c) for c in chunks] == entries, f"checksums of {name}")

    def check_padding(self):
        for part, (_, length) in enumerate(self.parts):
            at = 12288 if part == 0 else 4096
            for a, n in sorted((a, n) for o in self.order for p, a, n in o["segments"] if p == part):
                check(a >= at and a % 4096 == 0, "overlap or alignment")
                check(not any(self._read(part, at, a - at)), "padding")
                at = a + n
            check(at == length, f"length of part {part}")

    def tensor(self, name):
        """An object as f32: [N, K], plain shape, or for a bank a list of (gate, up, down)."""
        o, data = self.objects[name], self.data(name)
        if o["kind"] == "bank":
            out = []
            for e in range(o["experts"]):
                blob = data[e * o["stride"]:(e + 1) * o["stride"]]
                out.append([matrix(blob, m["type"], m["codebook"], m["rows"], m["cols"], m["offset"], m["tile_stride"], m["scales"]) for m in o["matrices"]])
            return out
        if not o["tiled"]:
            raw = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "u8": "u1"}[o["type"]]
            x = np.frombuffer(data, raw)
            if o["type"] == "bf16": x = (x.astype(np.uint32) << 16).view(np.float32)
            return x.astype(np.float32).reshape(o["shape"])
        n, k = o["shape"]
        tile = (k + 31) // 32 * BLOCK_BYTES[o["type"]]
        scales = ((n + 7) // 8 * tile + 63) // 64 * 64 if o["type"] == "f8" else 0
        return matrix(data, o["type"], o["codebook"], n, k, 0, tile, scales)


def e4m3(b):
    b = b.astype(np.int32)
    e, m = (b >> 3) & 15, b & 7
    v = np.where(e == 0, m / 8 * 2.0 ** -6, (1 + m / 8) * 2.0 ** (e - 7.0))
    return np.where(b & 128, -v, v).astype(np.float32)


def matrix(data, kind, codebook, n, k, offset, tile_stride, scale_offset):
    """Dequantises N x K from tiles (docs/arithmetic.md, "Tile layout")."""
    groups, size = (k + 31) // 32, BLOCK_BYTES[kind]
    rows = []
    for t in range((n + 7) // 8):
        tile = np.frombuffer(data, np.uint8, groups * size, offset + t * tile_stride).reshape(groups, size)
        if kind in ("i8", "c4"):
            scale = tile[:, :16].copy().view("<f2").astype(np.float32)  # [groups, 8]
            if kind == "i8": q = tile[:, 16:].view(np.int8).reshape(groups, 8, 32).astype(np.float32)
            else:
                nibbles = tile[:, 16:].reshape(groups, 8, 16)
                q = CODEBOOKS[codebook][np.concatenate((nibbles & 15, nibbles >> 4), 2)].astype(np.float32)
            block = q * scale[:, :, None]
        elif kind == "f8": block = e4m3(tile).reshape(groups, 8, 32)
        elif kind == "bf16": block = (tile.copy().view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(groups, 8, 32)
        else: block = tile.copy().view({"f32": "<f4", "f16": "<f2"}[kind]).astype(np.float32).reshape(groups, 8, 32)
        rows.append(block.transpose(1, 0, 2).reshape(8, groups * 32))
    w = np.concatenate(rows)[:n, :k]
    if kind == "f8":
        s = np.frombuffer(data, "<f4", ((n + 127) // 128) * ((k + 127) // 128), scale_offset).reshape((n + 127) // 128, -1)
        w = w * np.repeat(np.repeat(s, 128, 0), 128, 1)[:n, :k]
    return w

"""An independent reader of .ninfer containers, written from docs/container.md alone. It shares no code with the program:
what both say about the same file is a test of the specification. Slow and strict."""
import os, struct, typing

import numpy as np
import xxhash, zstandard

BLOCK, MAX_DIRECTORY, MAX_BLOB, CHUNK = 4096, 64 << 20, 1 << 30, 64 << 20
KINDS = ["tensor", "bank", "row table", "blob"]
TYPES = ["f32", "f16", "bf16", "f8", "i8", "c4", "u8", "z4", "a4", "s5", "s6"]
CODEBOOKS = {0: None, 1: list(range(-8, 8)),
             2: [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
             3: [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]}
F16, E8M0, E4M3_SCALES = 0, 1, 2  # scale kinds
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f8": 1, "u8": 1}
PARTS = {"f32": (0, 0, 1024, 0), "f16": (0, 0, 512, 0), "bf16": (0, 0, 512, 0), "f8": (0, 0, 256, 0), "i8": (16, 0, 256, 0), "c4": (16, 0, 128, 0),
         "z4": (16, 8, 128, 0), "a4": (16, 16, 128, 0), "s5": (16, 0, 128, 32), "s6": (16, 0, 128, 64)}
INTEGERS = ("i8", "c4", "z4", "a4", "s5", "s6")


class Format(typing.NamedTuple):
    type: str
    codebook: int = 0
    scale: int = F16

    def parts(self):
        """Bytes of scales, offsets, codes and high bits in a block."""
        return (8, 0, 128, 0) if self.scale == E8M0 else PARTS[self.type]

    def ok(self):
        return self.codebook in (1, 2, 3) and self.scale in (0, 1, 2) if self.type == "c4" else self.codebook == 0 and self.scale == 0


class FormatError(Exception):
    pass


def need(condition, what):
    if not condition:
        raise FormatError(what)


def up(n, to):
    return -(-n // to) * to


def content_size(frame):
    """What a zstd frame's header says, or None."""
    try:
        return zstandard.frame_content_size(frame)
    except zstandard.ZstdError:
        return None


def unzstd(frame, size, what):
    need(content_size(frame) == size, f"{what}: the frame does not hold {size} bytes")
    try:
        out = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as e:
        raise FormatError(f"{what}: {e}") from e
    need(len(out) == size, f"{what}: the frame does not hold {size} bytes")
    return out


def checksum(data):
    return xxhash.xxh3_128_digest(data)


# ---- lists of items ------------------------------------------------------------------------------------------

def items(data, what):
    at = 0
    while at < len(data):
        need(len(data) - at >= 8, f"{what}: cut short")
        key, n = struct.unpack_from("<II", data, at)
        need(n <= len(data) - at - 8, f"{what}: item {key} is cut short")
        yield key, data[at + 8:at + 8 + n]
        at += 8 + n


def unknown(key, what):
    need(not key & 0x80000000, f"{what}: item {key & 0x7fffffff} needs a newer program")


def unique_items(data, known, what):
    found = {}
    for key, payload in items(data, what):
        need(key not in found, f"{what}: item {key} appears twice")
        found[key] = payload
        if key not in known:
            unknown(key, what)
    return found


def text(data, limit, what):
    need(len(data) <= limit and b"\0" not in data, f"{what}: too long, or a NUL byte")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FormatError(f"{what}: {e}") from e


def fixed(layout, data, what):
    need(len(data) == struct.calcsize(layout), f"{what}: {len(data)} bytes, {struct.calcsize(layout)} expected")
    return struct.unpack(layout, data)


# ---- numbers of matrices -------------------------------------------------------------------------------------

def tile_bytes(f, cols):
    return -(-cols // 32) * sum(f.parts())


def matrix_bytes(f, rows, cols):
    return -(-rows // 8) * tile_bytes(f, cols)


def table_bytes(f, rows, cols):
    return 4 * -(-rows // 128) * -(-cols // 128) if f.type == "f8" else 4 if f.scale == E4M3_SCALES else 0


def e4m3_table():
    table = []
    for code in range(256):
        sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
        if exponent == 15 and mantissa == 7:
            table.append(float("nan"))
        elif exponent:
            table.append(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))
        else:
            table.append(sign * mantissa / 8 * 2.0 ** -6)
    return np.array(table, np.float32)


E4M3 = e4m3_table()


def elements(type, raw):
    """The elements of a float type as f32; f8 without its scale."""
    if type == "bf16":
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    if type == "f8":
        return E4M3[raw]
    return raw.view({"f32": "<f4", "f16": "<f2"}[type]).astype(np.float32)


def runs(raw):
    """[..., n runs of 32 bytes: 8 rows x 4] -> [..., 8 rows, 4 n]"""
    raw = raw.reshape(*raw.shape[:-1], -1, 8, 4)
    return np.moveaxis(raw, -3, -2).reshape(*raw.shape[:-3], 8, -1)


def raw_codes(f, codes, high):
    """Stored codes [..., 8, 32] of the bytes of blocks [..., bytes]."""
    code = runs(codes)
    if f.type == "i8": return code
    code = np.concatenate([code & 15, code >> 4], axis=-1)
    b = high.reshape(*high.shape[:-1], -1, 8, 4)  # [..., 1 or 2, rows, column mod 4]
    for c in range(32):
        if f.type == "s5": code[..., c] |= (b[..., 0, :, c % 4] >> c // 4 & 1) << 4
        if f.type == "s6": code[..., c] |= (b[..., c // 16, :, c % 4] >> 2 * (c % 16 // 4) & 3) << 4
    return code


def integers(f, code):
    """What codes stand for, as f32; z4 without its zero point."""
    if f.type == "c4": return np.array(CODEBOOKS[f.codebook], np.float32)[code]
    if f.type == "i8": return code.view(np.int8).astype(np.float32)
    half = {"s5": 16, "s6": 32}.get(f.type)
    return code.astype(np.float32) if half is None else (code.astype(np.int32) ^ half).astype(np.float32) - half


def block_scales(f, raw):
    """Scales [..., 8, 32] of the first bytes of blocks."""
    if f.scale == F16: s = np.ascontiguousarray(raw).view("<f2").astype(np.float32)[..., None].repeat(32, -1)
    elif f.scale == E8M0: s = np.ldexp(np.float32(1), raw.astype(np.int32) - 127)[..., None].repeat(32, -1)
    else: s = np.moveaxis(E4M3[raw].reshape(*raw.shape[:-1], 2, 8), -2, -1).repeat(16, -1)
    return s * np.float32(0.5) if f.codebook == 3 else s


def split(f, raw):
    at = np.cumsum((0,) + f.parts())
    return [np.ascontiguousarray(raw[..., a:b]) for a, b in zip(at, at[1:])]


def dequantise_blocks(f, raw):
    """Blocks [..., bytes] as f32 [..., 8, 32], without a table."""
    scales, offsets, codes, high = split(f, raw)
    if f.type not in INTEGERS: return np.swapaxes(elements(f.type, codes).reshape(*raw.shape[:-1], 32, 8), -1, -2)
    q = integers(f, raw_codes(f, codes, high))
    if f.type == "z4": q = q - offsets[..., None]
    v = block_scales(f, scales) * q
    return v + offsets.view("<f2").astype(np.float32)[..., None] if f.type == "a4" else v


def dequantise_tiles(f, data, rows, cols, table=None, stride=None):
    """The tiles of a matrix (tile 0 at data[0], `stride` bytes apart) as f32 [rows, cols]."""
    tiles, blocks, one = -(-rows // 8), -(-cols // 32), tile_bytes(f, cols)
    stride = stride or one
    raw = np.stack([np.frombuffer(data, np.uint8, one, t * stride) for t in range(tiles)]).reshape(tiles, blocks, -1)
    with np.errstate(all="ignore"):
        out = dequantise_blocks(f, raw).transpose(0, 2, 1, 3).reshape(tiles * 8, blocks * 32)[:rows, :cols]
        if f.type == "f8":
            scales = np.frombuffer(table, "<f4", table_bytes(f, rows, cols) // 4).reshape(-(-rows // 128), -(-cols // 128))
            out = out * scales.repeat(128, 0)[:rows].repeat(128, 1)[:, :cols]
        if f.scale == E4M3_SCALES: out = out * np.frombuffer(table, "<f4", 1)
    return out


# ---- objects -------------------------------------------------------------------------------------------------

class Matrix:
    """One of the three matrices of an expert."""

    def __init__(self, data):
        type, codebook, scale, _, self.rows, self.cols, self.offset, self.stride, self.scale_offset = \
            fixed("<BBB5sQQQQQ", data, "matrix of a bank")
        need(type < len(TYPES) and TYPES[type] != "u8", "matrix of a bank: unknown type")
        self.format = Format(TYPES[type], codebook, scale)
        need(self.format.ok(), "matrix of a bank: codebook or scale kind")


class Object:
    def __init__(self, payload, components):
        found = unique_items(payload, range(1, 12), "object")
        need({1, 2, 3, 5} <= found.keys(), "object: an item is missing")
        self.name = text(found[1], 512, "object name")
        need(self.name, "object: empty name")
        where = f"object '{self.name}'"
        component, = fixed("<I", found[2], where)
        need(component < len(components), f"{where}: component")
        self.component = components[component]
        kind, type, self.codebook, scale, flags = fixed("<BBBBB", found[3], where)
        need(kind < 4 and type < len(TYPES) and flags < 4, f"{where}: unknown kind, type or flags")
        self.kind, self.type, self.tiled, self.compressed = KINDS[kind], TYPES[type], bool(flags & 1), bool(flags & 2)
        self.format = Format(self.type, self.codebook, scale)
        need(self.format.ok(), f"{where}: codebook or scale kind")
        shape = found.get(4, b"")
        need(len(shape) % 8 == 0 and len(shape) <= 64, f"{where}: shape")
        self.shape = struct.unpack(f"<{len(shape) // 8}Q", shape)
        self.bytes, self.raw_bytes = fixed("<QQ", found[5], where)
        segments = found.get(6, b"")
        need(len(segments) % 24 == 0 and len(segments) // 24 <= 4096, f"{where}: segments")
        self.segments = [(p, o, n) for p, _, o, n in struct.iter_unpack("<IIQQ", segments)]
        self.checksum = found.get(7)
        self.checks = fixed("<IIQQ", found[8], where) if 8 in found else None
        self.metadata = text(found[11], 16 << 20, where) if 11 in found else None
        special = {"blob": {7}, "bank": {9}, "row table": {10}, "tensor": set()}[self.kind]
        need({7, 9, 10} & found.keys() == special, f"{where}: items of another kind")
        need(self.checks is None or self.checks[0] != 0xffffffff, f"{where}: checksum table")
        if self.kind == "bank":
            need(len(found[9]) == 160, f"{where}: bank item")
            self.experts, self.stride = struct.unpack_from("<QQ", found[9])
            self.matrices = [Matrix(found[9][16 + 48 * m:64 + 48 * m]) for m in range(3)]
        if self.kind == "row table":
            self.row_stride, self.row_scale_bytes = fixed("<QQ", found[10], where)
        if self.kind == "blob":
            need(len(self.checksum) == 16, f"{where}: checksum")
        need(self.bytes == self.expected_bytes(where), f"{where}: stored bytes")

    def expected_bytes(self, where):
        need(self.kind == "blob" or (self.raw_bytes == self.bytes and not self.compressed), f"{where}: raw bytes")
        need(self.kind == "tensor" or not self.tiled, f"{where}: only tensors are tiled")
        return {"tensor": self.tensor_bytes, "bank": self.bank_bytes, "row table": self.row_table_bytes,
                "blob": self.blob_bytes}[self.kind](where)

    def tensor_bytes(self, where):
        if not self.tiled:
            need(self.type in ("f32", "f16", "bf16", "u8"), f"{where}: a plain tensor of this type")
            n = ELEMENT_BYTES[self.type]
            for d in self.shape:
                n *= d
            return n
        need(len(self.shape) == 2 and min(self.shape) > 0 and self.type != "u8", f"{where}: shape")
        tiles, scales = matrix_bytes(self.format, *self.shape), table_bytes(self.format, *self.shape)
        return up(tiles, 64) + scales if scales else tiles

    def bank_bytes(self, where):
        gate, upper, down = self.matrices
        need(self.shape == (self.experts, gate.rows, gate.cols) and min(self.shape) > 0, f"{where}: shape")
        need(gate.format == self.format == upper.format, f"{where}: types")
        need((upper.rows, upper.cols) == (gate.rows, gate.cols) == (down.cols, down.rows), f"{where}: shapes of matrices")
        g, u = tile_bytes(gate.format, gate.cols), matrix_bytes(gate.format, gate.rows, gate.cols)
        need((gate.offset, gate.stride, upper.offset, upper.stride) == (0, 2 * g, g, 2 * g), f"{where}: gate and up")
        need((down.offset, down.stride) == (2 * u, tile_bytes(down.format, down.cols)), f"{where}: down")
        end = 2 * u + matrix_bytes(down.format, down.rows, down.cols)
        for m in self.matrices:
            scales = table_bytes(m.format, m.rows, m.cols)
            if scales:
                end = up(end, 64)
            need(m.scale_offset == (end if scales else 0), f"{where}: scale table")
            end += scales
        need(self.stride == up(end, BLOCK), f"{where}: expert stride")
        return self.experts * self.stride

    def row_table_bytes(self, where):
        need(len(self.shape) == 2 and min(self.shape) > 0, f"{where}: shape")
        rows, cols = self.shape
        groups = -(-cols // 32)
        scales = {"i8": 2 * groups, "c4": 2 * groups, "f8": 4 * -(-cols // 128)}.get(self.type, 0)
        length = {"i8": 32 * groups, "c4": 16 * groups}.get(self.type) or cols * ELEMENT_BYTES[self.type]
        need(self.row_stride and self.row_stride % 64 == 0 and self.row_scale_bytes >= scales and
             self.row_scale_bytes + length <= self.row_stride, f"{where}: row stride")
        if self.row_stride >= BLOCK:
            return rows * self.row_stride
        return -(-rows // (BLOCK // self.row_stride)) * BLOCK

    def blob_bytes(self, where):
        need(self.type == "u8" and self.shape == (self.raw_bytes,), f"{where}: a blob is u8 of one dimension")
        need(max(self.bytes, self.raw_bytes) <= MAX_BLOB, f"{where}: too large")
        need(self.bytes > 0 if self.compressed else self.bytes == self.raw_bytes, f"{where}: stored bytes")
        return self.bytes

    def ranges(self):
        """(index, part, offset, length) of what has one checksum each."""
        index = 0
        for part, offset, length in self.segments:
            unit = self.stride if self.kind == "bank" else CHUNK
            for at in range(0, length, unit):
                yield index, part, offset + at, min(unit, length - at)
                index += 1


# ---- the container -------------------------------------------------------------------------------------------

class Container:
    def __init__(self, path):
        self.path, self.files = path, []
        try:
            self.open()
        except BaseException:
            self.close()
            raise

    def close(self):
        for f in self.files:
            f.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def part_path(self, number):
        return f"{self.path}.part-{number:04d}" if number else self.path

    def open_part(self, number):
        try:
            f = open(self.part_path(number), "rb")
        except OSError as e:
            raise FormatError(f"{self.part_path(number)}: {e.strerror}") from e
        self.files.append(f)
        head = f.read(BLOCK)
        need(len(head) == BLOCK and head[:8] == b"NINFER\r\n", f"{f.name}: not a .ninfer container")
        need(checksum(head[:4080]) == head[4080:], f"{f.name}: damaged head")
        major, minor, stored, uuid, part_id = struct.unpack_from("<HHI16s16s", head, 8)
        need(major == 1, f"{f.name}: version {major}.{minor}, written by {head[48:80].rstrip(bytes(1))}")
        need(stored == number, f"{f.name}: is part {stored}")
        return uuid, part_id

    def read(self, part, offset, length):
        f = self.files[part]
        f.seek(offset)
        data = f.read(length)
        need(len(data) == length, f"{f.name}: ends early")
        return data

    def slots(self, uuid):
        for at in (4096, 8192):
            block = self.read(0, at, BLOCK)
            if block[:8] == b"NFSLOT\r\n" and checksum(block[:4080]) == block[4080:] and block[56:72] == uuid:
                yield struct.unpack_from("<QQQQ16s", block, 8)

    def open(self):
        self.uuid, self.part_ids = None, []
        uuid, part_id = self.open_part(0)
        slots = sorted(self.slots(uuid))
        need(slots, f"{self.path}: no valid slot")
        self.generation, offset, stored, raw, digest = slots[-1]
        need(max(stored, raw) <= MAX_DIRECTORY and offset % BLOCK == 0 and offset >= 12288, f"{self.path}: directory")
        frame = self.read(0, offset, stored)
        need(checksum(frame) == digest, f"{self.path}: the directory is damaged")
        self.directory_at, self.directory_end = offset, offset + stored
        self.directory = unzstd(frame, raw, "directory")
        self.decode(self.directory)
        need(self.uuid == uuid, f"{self.path}: the directory is of another model")
        need(offset >= up(self.parts[0][1], BLOCK), f"{self.path}: the directory overlaps objects")
        for number, (wanted, length) in enumerate(self.parts):
            if number:
                part_uuid, part_id = self.open_part(number)
                need(part_uuid == uuid, f"{self.part_path(number)}: is of another model")
            need(part_id == wanted, f"{self.part_path(number)}: is of another add-on")
            need(os.fstat(self.files[number].fileno()).st_size >= length, f"{self.part_path(number)}: is cut short")
        for o in self.objects.values():
            if o.kind == "blob":
                data = self.stored(o)
                need(checksum(data) == o.checksum, f"blob '{o.name}' is damaged")
                need(not o.compressed or content_size(data) == o.raw_bytes, f"blob '{o.name}' is not a frame")

    def decode(self, data):
        self.parts, self.components, self.metadata, self.retired, objects = [], [], {}, [], []
        for key, payload in items(data, "directory"):
            if key == 1:
                need(self.uuid is None, "directory: two sets")
                self.uuid, generation = fixed("<16sQ", payload, "set")
                need(generation == self.generation, "directory: generation")
            elif key == 2:
                self.parts.append(fixed("<16sQ", payload, "part"))
            elif key == 3:
                found = unique_items(payload, [1], "component")
                need(found.get(1) and (name := text(found[1], 512, "component")) not in self.components, "component: name")
                self.components.append(name)
            elif key == 4:
                objects.append(payload)
            elif key == 5:
                found = unique_items(payload, [1, 2], "metadata")
                need(found.get(1) and 2 in found, "metadata: key or value is missing")
                name = text(found[1], 512, "metadata key")
                need(name not in self.metadata, f"metadata '{name}' twice")
                self.metadata[name] = text(found[2], 16 << 20, f"metadata '{name}'")
            elif key == 6:
                part, _, offset, length = fixed("<IIQQ", payload, "retired segment")
                self.retired.append((part, offset, length))
            else:
                unknown(key, "directory")
        need(self.uuid is not None and 1 <= len(self.parts) <= 4096, "directory: set or parts")
        for number, (_, length) in enumerate(self.parts):
            need((4096 if number else 12288) <= length <= 1 << 46, f"part {number}: length")
        self.list = [Object(o, self.components) for o in objects]
        self.objects = {o.name: o for o in self.list}
        need(len(self.objects) == len(self.list), "directory: two objects of one name")
        self.check_placement()

    def check_placement(self):
        everything = [(s, "retired") for s in self.retired]
        for o in self.list:
            unit = o.stride if o.kind == "bank" else BLOCK
            need(sum(n for _, _, n in o.segments) == o.bytes, f"'{o.name}': segments do not add up")
            need([p for p, _, _ in o.segments] == sorted({p for p, _, _ in o.segments}), f"'{o.name}': order of parts")
            need(all(n % unit == 0 for _, _, n in (o.segments if o.kind == "bank" else o.segments[:-1])), f"'{o.name}': cut")
            need(o.kind != "bank" or o.segments[0][1] % (2 << 20) == 0, f"'{o.name}': bank alignment")
            everything += [(s, o.name) for s in o.segments]
            count = len(list(o.ranges())) if o.kind != "blob" else 0
            if not count:
                need(o.checks is None, f"'{o.name}': has a checksum table")
                continue
            need(o.checks is not None and o.checks[0] < len(self.list) and o.checks[3] == count, f"'{o.name}': checksum table")
            table = self.list[o.checks[0]]
            need(table.kind == "blob" and (o.checks[2] + count) * 16 <= table.raw_bytes, f"'{o.name}': checksum table")
        everything.sort()
        for (part, offset, length), name in everything:
            need(part < len(self.parts) and length > 0 and offset % BLOCK == 0, f"'{name}': segment")
            need(offset >= (4096 if part else 12288) and offset + length <= self.parts[part][1], f"'{name}': segment")
        for (a, x), (b, y) in zip(everything, everything[1:]):
            need(a[0] != b[0] or a[1] + a[2] <= b[1], f"'{x}' and '{y}' overlap")
        self.everything = [s for s, _ in everything]

    # ---- contents --------------------------------------------------------------------------------------------

    def stored(self, o):
        return b"".join(self.read(*s) for s in o.segments)

    def blob(self, name):
        o = self.objects[name]
        data = self.stored(o)
        return unzstd(data, o.raw_bytes, f"blob '{name}'") if o.compressed else data

    def matrix(self, name):
        """A tensor as f32."""
        o, data = self.objects[name], self.stored(self.objects[name])
        if not o.tiled:
            return elements(o.type, np.frombuffer(data, np.uint8)).reshape(o.shape)
        return dequantise_tiles(o.format, data, *o.shape, data[up(matrix_bytes(o.format, *o.shape), 64):])

    def expert(self, name, e, m):
        """Matrix m (0 gate, 1 up, 2 down) of expert e as f32."""
        o = self.objects[name]
        blob, x = self.stored(o)[e * o.stride:(e + 1) * o.stride], o.matrices[m]
        return dequantise_tiles(x.format, blob[x.offset:], x.rows, x.cols, blob[x.scale_offset:], x.stride)

    def row(self, name, r):
        """A row of a row table as f32."""
        o, data = self.objects[name], self.stored(self.objects[name])
        if o.row_stride >= BLOCK:
            at = r * o.row_stride
        else:
            per_block = BLOCK // o.row_stride
            at = r // per_block * BLOCK + r % per_block * o.row_stride
        raw = np.frombuffer(data[at:at + o.row_stride], np.uint8)
        scales, body, cols = raw[:o.row_scale_bytes], raw[o.row_scale_bytes:], o.shape[1]
        if o.type in ("i8", "c4"):
            groups, width = -(-cols // 32), 32 if o.type == "i8" else 16
            scale = np.ascontiguousarray(scales[:2 * groups]).view("<f2").astype(np.float32)
            body = body[:groups * width].reshape(groups, width)
            value = integers(o.format, body if o.type == "i8" else np.concatenate([body & 15, body >> 4], -1)) * (0.5 if o.codebook == 3 else 1)
            return (value * scale[:, None]).reshape(-1)[:cols]
        if o.type == "u8":
            return body[:cols].astype(np.float32)
        value = elements(o.type, np.ascontiguousarray(body[:cols * ELEMENT_BYTES[o.type]]))
        if o.type == "f8":
            value = value * np.ascontiguousarray(scales[:4 * -(-cols // 128)]).view("<f4").repeat(128)[:cols]
        return value

    # ---- verification ----------------------------------------------------------------------------------------

    def padding(self):
        """(part, from, to) of all bytes that must be zero."""
        for part, (_, length) in enumerate(self.parts):
            at = 4096 if part else 12288
            for _, offset, n in (s for s in self.everything if s[0] == part):
                yield part, at, offset
                at = offset + n
            yield part, at, up(length, BLOCK)
        yield 0, self.directory_end, up(self.directory_end, BLOCK)

    def verify(self):
        """The list of what is wrong."""
        wrong = []
        for o in self.list:
            if o.kind == "blob":
                continue
            table = self.blob(self.list[o.checks[0]].name) if o.checks else b""
            for index, part, offset, length in o.ranges():
                at = 16 * (o.checks[2] + index)
                if checksum(self.read(part, offset, length)) != table[at:at + 16]:
                    wrong.append(f"'{o.name}' {index}")
        for part, begin, end in self.padding():
            end = min(end, os.fstat(self.files[part].fileno()).st_size)
            if end > begin and any(self.read(part, begin, end - begin)):
                wrong.append(f"padding of part {part} at {begin}")
        return wrong

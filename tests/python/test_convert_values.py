"""Containers of the converter read by the independent reader (ninfer_reader.py): every value against the checkpoint."""
import glob, json, struct
import numpy as np
import pytest

from ninfer_reader import Container, dequantise_tiles, elements
from support import MODEL, run


def checkpoint(folder):
    """All tensors as f32, block FP8 dequantised."""
    out = {}
    for path in sorted(glob.glob(f"{folder}/*.safetensors")):
        raw = open(path, "rb").read()
        n = struct.unpack("<Q", raw[:8])[0]
        for name, t in json.loads(raw[8:8 + n]).items():
            if name == "__metadata__": continue
            a, z = t["data_offsets"]
            b = raw[8 + n + a:8 + n + z]
            if t["dtype"] == "BF16": x = (np.frombuffer(b, np.uint16).astype(np.uint32) << 16).view(np.float32)
            elif t["dtype"] == "F32": x = np.frombuffer(b, np.float32)
            else: x = elements("f8", np.frombuffer(b, np.uint8))
            out[name] = x.reshape(t["shape"])
    for name in [k for k in out if k.endswith("_scale_inv")]:
        s, w = out.pop(name), out[name[:-10]]
        out[name[:-10]] = w * np.repeat(np.repeat(s, 128, 0), 128, 1)[:w.shape[0], :w.shape[1]]
    return out


SOURCE = checkpoint(MODEL)


def source_name(name):
    name = name if name.startswith("mtp.") else f"model.{name}"
    return name if name in SOURCE else f"{name}.weight"


def error(kind, w, got):
    """Largest error, as a multiple of what the type allows: nothing for f32 and bf16 (the checkpoint holds bf16 and FP8), one unit of f16, half a
    step of i8 (and the rounding of its scale), a step of c4 (whose search may clip the largest values a little)."""
    if kind in ("f32", "bf16"): return 0 if (w == got).all() else 2
    if kind == "f8": return (np.abs(w - got) / (np.abs(w) * 2.0 ** -4 + np.abs(w).max() * 2.0 ** -18)).max() / 1.001
    if kind == "f16": return (np.abs(w - got) / (np.abs(w) * 2.0 ** -11 + 2.0 ** -25)).max() / 1.001
    pad = -w.shape[1] % 32
    w, got = (np.pad(x, ((0, 0), (0, pad))).reshape(len(x), -1, 32) for x in (w, got))
    step = np.abs(w).max(2, keepdims=True) / {"i8": 127, "c4": 7, "z4": 7, "a4": 7, "s5": 15, "s6": 31}[kind]
    return (np.abs(w - got) / np.maximum(step, 1e-30)).max() / {"i8": 0.57, "z4": 1.6, "a4": 1.6}.get(kind, 1.3)


@pytest.mark.parametrize("flags", [["--type", "f32"], ["--type", "bf16"], ["--type", "f16"], ["--type", "i8"], ["--type", "c4"], ["--type", "c4", "--codebook", "nl"],
                                   ["--type", "f8"], ["--type", "s5"], ["--type", "s6"], ["--type", "z4"], ["--type", "a4"],
                                   ["--type", "c4", "--max-file-gb", "0.004"]], ids=" ".join)
def test_values(flags, tmp_path):
    path = tmp_path / "m.ninfer"
    run("ninfer-convert", MODEL, path, *flags)
    run("ninfer-convert", "verify", path)
    c = Container(str(path))
    assert c.metadata["model.name"] == "tiny-moe" and json.loads(c.metadata["model.config"]) == json.load(open(f"{MODEL}/config.json"))
    assert c.blob("chat_template").decode() == open(f"{MODEL}/chat_template.jinja").read()
    if "--max-file-gb" in flags: assert len(c.parts) >= 5 and all(n <= 4_000_000 for _, n in c.parts)
    used = set()
    for o in c.list:
        if o.kind == "bank":
            assert o.type == flags[1]
            data = c.stored(o)
            for e in range(o.experts):
                for part, m in zip(("gate_proj", "up_proj", "down_proj"), o.matrices):
                    key = f"{source_name(o.name).removesuffix('.weight')}.{e}.{part}.weight"
                    used.add(key)
                    got = dequantise_tiles(m.format, data[e * o.stride + m.offset:(e + 1) * o.stride], m.rows, m.cols, data[e * o.stride + m.scale_offset:], m.stride)
                    assert error(o.type, SOURCE[key], got) <= 1, key
        elif o.kind == "tensor":
            key, got = source_name(o.name), c.matrix(o.name)
            used.add(key)
            w = SOURCE[key].reshape(got.shape)
            assert error(o.type, w, got) <= 1 if o.tiled else (w == got).all(), o.name
            if o.name.endswith(("mlp.gate", "in_proj_a", "in_proj_b", "shared_expert_gate")): assert o.type == "f32"
    assert used == set(SOURCE)


def test_threads_do_not_change_a_byte(tmp_path):
    """Ids are random, all else is the same for any number of threads."""
    data = []
    for t in (1, 2, 5):
        run("ninfer-convert", MODEL, tmp_path / f"{t}.ninfer", "--threads", t)
        c = Container(str(tmp_path / f"{t}.ninfer"))
        data.append({o.name: c.stored(o) for o in c.list})
    assert data[0] == data[1] == data[2]


def test_inspect_and_verify(tmp_path):
    path = tmp_path / "m.ninfer"
    run("ninfer-convert", MODEL, path)
    out = json.loads(run("ninfer-convert", "inspect", path, "--json")[0])
    c = Container(str(path))
    assert [o["name"] for o in out["objects"]] == [o.name for o in c.list]
    assert [o["bytes"] for o in out["objects"]] == [o.bytes for o in c.list]
    assert out["metadata"] == c.metadata
    assert "layers.0.mlp.experts" in run("ninfer-convert", "inspect", path)[0]
    assert "ok" in run("ninfer-convert", "verify", path)[0]
    bank = c.objects["layers.2.mlp.experts"]
    with open(path, "r+b") as f:
        f.seek(bank.segments[0][1] + 5 * bank.stride + 77)
        b = f.read(1)
        f.seek(-1, 1)
        f.write(bytes([b[0] ^ 1]))
    out, _ = run("ninfer-convert", "verify", path, status=1)
    assert "layers.2.mlp.experts', expert 5" in out and "DAMAGED" in out
    run("ninfer", path, "-p", "x", "-n", 1)
    _, err = run("ninfer", path, "-p", "x", "-n", 1, "--verify", status=1)
    assert "expert 5" in err

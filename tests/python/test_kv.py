"""The types of the KV cache: random models of several head counts against a numpy forward pass that keeps K and V as docs/arithmetic.md says, the promise
that threads, chunks and levels change no byte, and the flag itself."""
import json
import numpy as np
import pytest

import make_checkpoint as mk
import test_qwen3_moe as qwen3
from support import BUILD, MODEL, run
from test_golden import LEVELS

KINDS = ["f32", "bf16", "fp8", "q8"]
# heads, KV heads, head size: ratios 1, 3, 4, 6, 8, 12 and 20
SHAPES = [(2, 2, 34), (3, 1, 80), (8, 2, 64), (6, 1, 96), (8, 1, 128), (12, 1, 20), (20, 1, 16)]
IDS = [int(i) for i in np.random.default_rng(3).integers(0, 256, 600)]


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16).astype(np.uint32)).view(np.float32).astype(np.float64)


def to_e4m3(x):
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0 ** -6))), -6) - 3)
    return np.clip(np.round(x / step) * step, -448, 448)


def stored(kind):
    def keep(x):  # [T, heads, D]
        if kind == "f32": return x
        if kind == "bf16": return to_bf16(x)
        group = x.shape[-1] if kind == "fp8" else 32
        parts = []
        for c in range(0, x.shape[-1], group):
            part = x[..., c:c + group]
            top = np.abs(part).max(-1, keepdims=True)
            parts.append(to_e4m3(part * (448 / top)) * top / 448 if kind == "fp8" else np.round(part * (127 / top)) * top / 127)
        return np.concatenate(parts, -1)
    return keep


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("kv"), {}

    def get(shape):
        if shape not in made:
            heads, kv_heads, dim = SHAPES[shape]
            c = qwen3.config(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, num_hidden_layers=2, num_experts=2, num_experts_per_tok=1)
            w = mk.write(folder / f"src{shape}", c, weights=qwen3.tensors(c, 50 + shape))
            run("ninfer-convert", folder / f"src{shape}", folder / f"{shape}.ninfer", "--type", "f32")
            made[shape] = folder / f"{shape}.ninfer", c, w
        return made[shape]
    return get


def logits(model, folder, *flags, ids=IDS, env=None):
    run("ninfer", model, "--ids", json.dumps(ids), "--dump-logits", folder / "l.npy", *flags, env=env)
    return np.load(folder / "l.npy")


def rms(x): return np.sqrt((x * x).mean())


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_logits_of_1_to_600_keys(models, shape, tmp_path):
    """Each position of the prompt is a number of keys. What remains beside the stored values is f32 arithmetic and values that were rounded the other way."""
    model, c, w = models(shape)
    exact = qwen3.forward(c, w, IDS)
    for kind in KINDS:
        got, want = logits(model, tmp_path, "--kv-dtype", kind), qwen3.forward(c, w, IDS, stored(kind))
        # A token whose router was within rounding of a tie takes another expert: few may.
        near = np.abs(got - want).max(-1) <= (2e-3 if kind == "f32" else 0.3 * np.abs(want - exact).max())
        assert near.mean() > 0.97, (kind, near.mean())
        if kind != "f32":
            error, effect = rms(got[near] - want[near]), rms(want[near] - exact[near])
            print(shape, kind, f"error {error:.2e}, effect of the type {effect:.2e}")
            assert error < 0.15 * effect


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_threads_chunks_and_levels_do_not_change_a_byte(models, shape, kind, tmp_path):
    model, flags = models(shape)[0], ("--kv-dtype", kind)
    base = logits(model, tmp_path, *flags, "--threads", 1).tobytes()
    for threads, chunk in ((2, 1), (1, 7), (7, 256), (2, 599)):
        assert logits(model, tmp_path, *flags, "--threads", threads, "--prefill-chunk", chunk).tobytes() == base, (threads, chunk)
    for level in LEVELS: assert logits(model, tmp_path, *flags, env={"NINFER_CPU": level}).tobytes() == base, level


def test_more_blocks_than_are_computed_side_by_side(tmp_path):
    """One token joins its blocks of keys in waves of 64: behind 16384 keys there is a second one."""
    c = qwen3.config(num_hidden_layers=1, num_experts=1, num_experts_per_tok=1, max_position_embeddings=16640, head_dim=16)
    mk.write(tmp_path / "src", c, weights=qwen3.tensors(c, 1))
    run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", "--type", "f32")
    ids = [int(i) for i in np.random.default_rng(4).integers(0, 256, 16386)]
    for kind in ("f32", "q8"):
        got = [logits(tmp_path / "m.ninfer", tmp_path, "--kv-dtype", kind, "--prefill-chunk", chunk, ids=ids)[-300:].tobytes() for chunk in (512, 1)]
        assert got[0] == got[1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "c4.ninfer"
    run("ninfer-convert", MODEL, path)
    return path


def test_the_embedded_model_keeps_its_quality(tiny):
    nll = {k: json.loads(run("ninfer-perplexity", tiny, f"{MODEL}/chats.txt", "--max-windows", 8, "--json", "--kv-dtype", k)[0])["nll"] for k in KINDS}
    assert nll["f32"] == json.loads(run("ninfer-perplexity", tiny, f"{MODEL}/chats.txt", "--max-windows", 8, "--json")[0])["nll"]
    assert len(set(nll.values())) == 4  # the flag does something
    for kind, most in (("bf16", 0.001), ("q8", 0.002), ("fp8", 0.005)): assert abs(nll[kind] / nll["f32"] - 1) < most, nll


def test_flag(tiny):
    for command in (("ninfer", tiny, "-p", "x"), ("ninfer-run", tiny, "--prompt", "x"), ("ninfer-run", tiny, "--dry-run"),
                    ("ninfer-perplexity", tiny, f"{MODEL}/chats.txt")):
        for bad in ("q4", "", "F32", "fp8 ", "turbo4"):
            out, err = run(*command, "--kv-dtype", bad, status=2)
            assert f"--kv-dtype must be f32, bf16, fp8 or q8, not '{bad}'" in err and not out
        assert "needs a value" in run(*command, "--kv-dtype", status=2)[1]


@pytest.mark.parametrize("kind, per_token", [("f32", 2048), ("bf16", 1024), ("fp8", 544), ("q8", 576)])
def test_bytes_are_shown(tiny, kind, per_token):
    out, _ = run("ninfer-run", tiny, "--dry-run", "--max-context", 1000, "--kv-dtype", kind)
    lines = {line[:24].strip(): line[24:].split() for line in out.splitlines()}
    assert lines["KV cache per token"] == [str(per_token), "bytes", kind] and int(lines["KV cache"][0]) == 1000 * per_token
    _, err = run("ninfer-run", tiny, "--kv-dtype", kind, input="Who are you?\n/stats\n")
    assert f"{256 * per_token} bytes of KV ({kind}, {per_token} a token)" in err


def test_bench_attention(tmp_path):
    """The measurement runs, its report adds up, and bad values are refused. Its figures are nobody's business here."""
    flags = ["attention", "--mib", 16, "--runs", 2, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--prompt", 256]
    out, _ = run("ninfer-bench", *flags, "--json", tmp_path / "j", "--markdown", tmp_path / "m")
    assert (tmp_path / "m").read_text() == out
    rows = json.loads((tmp_path / "j").read_text())["results"]
    assert [(r["type"], r["context"], r["tokens"]) for r in rows] == [(k, c, t) for k in KINDS for c, t in ((512, 1), (4096, 1), (32768, 1), (256, 256))]
    for r in rows:
        per_token = {"f32": 512, "bf16": 256, "fp8": 144, "q8": 144}[r["type"]]
        assert abs(r["layer_mb"] * 1e6 - r["context"] * per_token) < 1e3 * r["layer_mb"]
        assert r["tokens"] > 1 or r["layers"] * r["layer_mb"] > 16
        assert abs(r["gb_s"] * r["seconds"]["median"] * 1e3 / (r["layers"] * r["layer_mb"]) - 1) < 1e-3
    for bad, text in ((["--kv-dtype", "q5"], "--kv-dtype must be"), (["--prompt", 300], "multiple of 256"), (["--heads", 5], "no multiple of --kv-heads")):
        assert text in run("ninfer-bench", *flags, *bad, status=2)[1]

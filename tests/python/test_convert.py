"""Conversions of synthetic checkpoints: odd shapes against the numpy reference, every kind of damage, kills and full disks."""
import glob, json, os, random, resource, shutil, signal, subprocess, sys, time
import numpy as np
import pytest

import make_checkpoint as mk
from ninfer_reader import Container
from support import BUILD, MODEL, run

sys.path.insert(0, f"{MODEL}/train")
import reference_numpy


def logits(model, ids, tmp_path, *flags):
    run("ninfer", model, "--ids", json.dumps(ids), "--dump-logits", tmp_path / "l.npy", *flags)
    return np.load(tmp_path / "l.npy")


class Reference(reference_numpy.Model):
    """The reference loads experts one by one and a tied head; packed experts and a head of its own are added here."""
    def __init__(self, folder):
        super().__init__(folder)
        for name in [k for k in self.W if k.endswith("experts.gate_up_proj")]:
            gu, down, p = self.W.pop(name), self.W.pop(name.replace("gate_up_proj", "down_proj")), name[:-len("gate_up_proj")]
            for e in range(len(gu)):
                self.W[f"{p}{e}.gate_proj.weight"], self.W[f"{p}{e}.up_proj.weight"] = np.split(gu[e], 2)
                self.W[f"{p}{e}.down_proj.weight"] = down[e]

    def logits(self, ids, state=None):
        return self.hidden(ids, state) @ self.W.get("lm_head.weight", self.embed).T


SHAPES = {
    "odd": {}, "tied": dict(tie_word_embeddings=True), "one expert": dict(num_experts=1, num_experts_per_tok=1), "all experts": dict(num_experts=5, num_experts_per_tok=5),
    "all attention": dict(layer_types=["full_attention"] * 3), "all linear": dict(layer_types=["linear_attention"] * 3), "wide": dict(hidden_size=264, moe_intermediate_size=72),
    "many heads": dict(num_attention_heads=6, num_key_value_heads=3, head_dim=16, linear_num_key_heads=3, linear_num_value_heads=3), "long conv": dict(linear_conv_kernel_dim=5),
    "narrow v": dict(linear_value_head_dim=7), "whole rotary": dict(rope_parameters=dict(rope_theta=500.0, partial_rotary_factor=1.0)),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("packed", [False, True])
def test_odd_shapes_equal_the_reference(name, packed, tmp_path):
    c = mk.config(**SHAPES[name])
    mk.write(tmp_path / "src", c, seed=len(name), packed=packed, shards=1 if packed else 3)
    run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", "--type", "f32")
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 256, 37)]
    got, want = logits(tmp_path / "m.ninfer", ids, tmp_path), Reference(str(tmp_path / "src")).logits(np.array(ids))
    assert np.abs(got - want).max() <= 2e-3
    for flags in (["--prefill-chunk", 1], ["--threads", 3, "--prefill-chunk", 5]):
        assert logits(tmp_path / "m.ninfer", ids, tmp_path, *flags).tobytes() == got.tobytes()
    run("ninfer-convert", tmp_path / "src", tmp_path / "q.ninfer", "--type", "c4")
    a = logits(tmp_path / "q.ninfer", ids, tmp_path)
    assert logits(tmp_path / "q.ninfer", ids, tmp_path, "--prefill-chunk", 3, "--threads", 7).tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_source_dtypes(dtype, tmp_path):
    mk.write(tmp_path / "src", dtype=dtype)
    run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", "--type", "f32")
    w = reference_numpy.load(str(tmp_path / "src")) if dtype == "BF16" else None
    c = Container(str(tmp_path / "m.ninfer"))
    if w: assert (c.matrix("layers.1.self_attn.q_proj") == w["model.layers.1.self_attn.q_proj.weight"]).all()
    assert c.metadata["tokenizer.special_tokens"] == '{"eos_token":"<|end|>"}'


def test_templates_see_the_special_tokens(tmp_path):
    mk.write(tmp_path / "src")
    (tmp_path / "src/chat_template.jinja").write_text("{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer")
    assert json.loads(run("ninfer", tmp_path / "m.ninfer", "--chat", "-p", "ab", "--tokenize")[0]) == [299, 97, 98]


def test_multimodal_checkpoints_give_their_text_part(tmp_path):
    c = mk.config()
    text = {k: v for k, v in c.items()}
    outer = dict(model_type="qwen3_5_moe", text_config=text, vision_config={})
    w = mk.tensors(c, 1)
    w["model.visual.patch_embed.weight"] = np.zeros((4, 4), np.float32)
    rename = lambda n: n if n.startswith(("model.visual", "lm_head")) else n.replace("model.", "model.language_model.", 1)
    mk.write(tmp_path / "src", outer, weights=w, rename=rename)
    _, err = run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", "--type", "f32")
    assert "left out 1 tensors" in err
    mk.write(tmp_path / "plain", c)
    run("ninfer-convert", tmp_path / "plain", tmp_path / "p.ninfer", "--type", "f32")
    assert logits(tmp_path / "m.ninfer", [1, 2, 3], tmp_path).tobytes() == logits(tmp_path / "p.ninfer", [1, 2, 3], tmp_path).tobytes()


# ---- damage ---------------------------------------------------------------------------------------------------------------------------

def edit_config(**changes): return lambda d: json.dump({**json.load(open(f"{d}/config.json")), **changes}, open(f"{d}/config.json", "w"))


def drop_config(*keys):
    def f(d):
        c = json.load(open(f"{d}/config.json"))
        for k in keys: c.pop(k)
        json.dump(c, open(f"{d}/config.json", "w"))
    return f


def edit_weights(f):
    def g(d):
        c = json.load(open(f"{d}/config.json"))
        w = mk.tensors(c, 1)
        f(w)
        for x in glob.glob(f"{d}/*.safetensors*"): os.remove(x)
        mk.write_safetensors(f"{d}/model.safetensors", {n: v if isinstance(v, tuple) else ("F32", v.shape, v.tobytes()) for n, v in w.items()})
    return g


def poke(name, at, data):
    def f(d):
        b = bytearray(open(f"{d}/{name}", "rb").read())
        b[at:at + len(data)] = data
        open(f"{d}/{name}", "wb").write(b)
    return f


def cut(name, n): return lambda d: os.truncate(f"{d}/{name}", os.path.getsize(f"{d}/{name}") - n if n > 0 else -n)
def write_text(name, text): return lambda d: open(f"{d}/{name}", "w").write(text)
def remove(name): return lambda d: os.remove(f"{d}/{name}")
def set_item(w, k, v): w[k] = v


def edit_index(f):
    def g(d):
        i = json.load(open(f"{d}/model.safetensors.index.json"))
        f(i["weight_map"])
        json.dump(i, open(f"{d}/model.safetensors.index.json", "w"))
    return g


SHARD = "model-00002-of-00003.safetensors"
Q = "model.layers.1.self_attn.q_proj.weight"
DAMAGE = {
    "no config": (remove("config.json"), "config.json"), "config not JSON": (write_text("config.json", "{"), "config.json"), "config an array": (write_text("config.json", "[]"), "config.json"),
    "unknown model type": (edit_config(model_type="llama"), "'llama' is not supported"), "no model type": (drop_config("model_type"), "model_type"),
    "no hidden size": (drop_config("hidden_size"), "'hidden_size' is missing"), "negative heads": (edit_config(num_attention_heads=-3), "num_attention_heads"),
    "huge hidden": (edit_config(hidden_size=10 ** 12), "hidden_size"), "heads not a multiple": (edit_config(num_key_value_heads=2), "num_attention_heads"),
    "top-k above experts": (edit_config(num_experts_per_tok=99), "num_experts_per_tok"), "layer types": (edit_config(layer_types=["full_attention"]), "layer_types"),
    "odd layer type": (edit_config(layer_types=["mamba"] * 3), "layer_types"), "rope type": (edit_config(rope_parameters=dict(rope_type="yarn")), "rope_type"), "activation": (edit_config(hidden_act="gelu"), "hidden_act"),
    "other quantisation": (edit_config(quantization_config=dict(quant_method="gptq")), "gptq"), "eos outside": (edit_config(eos_token_id=100000), "eos_token_id"),
    "missing shard": (remove(SHARD), SHARD), "index names absent file": (edit_index(lambda m: set_item(m, Q, "gone.safetensors")), "gone.safetensors"),
    "index path": (edit_index(lambda m: set_item(m, Q, "../x.safetensors")), "bad file name"), "index wrong file": (edit_index(lambda m: set_item(m, Q, "model-00001-of-00003.safetensors" if m[Q] != "model-00001-of-00003.safetensors" else SHARD)), Q),
    "index unknown tensor": (edit_index(lambda m: set_item(m, "ghost", SHARD)), "ghost"), "index not JSON": (write_text("model.safetensors.index.json", "nope"), "index.json"), "index without map": (write_text("model.safetensors.index.json", "{}"), "weight_map"),
    "shard cut": (cut(SHARD, 100), SHARD), "shard empty": (cut(SHARD, 0), SHARD), "shard of 7 bytes": (cut(SHARD, -7), SHARD), "header length lies": (poke(SHARD, 0, b"\xff\xff\xff\xff\xff\xff\xff\x7f"), "header claims"),
    "header length short": (poke(SHARD, 0, b"\x10\0\0\0\0\0\0\0"), SHARD), "header not JSON": (poke(SHARD, 8, b"XXXX"), SHARD), "trailing bytes": (lambda d: open(f"{d}/{SHARD}", "ab").write(b"junk"), "belong to no tensor"),
    "missing tensor": (edit_weights(lambda w: w.pop(Q)), f"'{Q}' is missing"), "missing expert": (edit_weights(lambda w: w.pop("model.layers.0.mlp.experts.4.up_proj.weight")), "experts.4.up_proj.weight' is missing"),
    "wrong shape": (edit_weights(lambda w: set_item(w, Q, w[Q][:-1])), "has shape [143, 40]"), "transposed": (edit_weights(lambda w: set_item(w, Q, w[Q].T.copy())), "[40, 144]"), "wrong dims": (edit_weights(lambda w: set_item(w, Q, w[Q].ravel())), Q),
    "integer tensor": (edit_weights(lambda w: set_item(w, Q, ("I32", w[Q].shape, w[Q].tobytes()))), "dtype I32"), "unknown dtype": (edit_weights(lambda w: set_item(w, Q, ("Q9", w[Q].shape, w[Q].tobytes()))), "Q9"),
    "FP8 without scales": (edit_weights(lambda w: set_item(w, Q, ("F8_E4M3", w[Q].shape, bytes(w[Q].size)))), "scales"), "bytes do not fit": (edit_weights(lambda w: set_item(w, Q, ("F32", w[Q].shape, w[Q].tobytes()[:-4]))), Q),
    "unknown tensor": (edit_weights(lambda w: set_item(w, "model.layers.0.mystery", w[Q])), "'model.layers.0.mystery'"), "NaN": (edit_weights(lambda w: w[Q].__setitem__((5, 7), np.nan)), "row 5, column 7"),
    "infinity in an expert": (edit_weights(lambda w: w["model.layers.2.mlp.experts.3.down_proj.weight"].__setitem__((1, 2), np.inf)), "experts.3.down_proj"),
    "too large for f16": (edit_weights(lambda w: w["model.layers.2.mlp.experts.3.down_proj.weight"].__setitem__((1, 2), 1e9)), "experts.3.down_proj"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json"), "tokenizer not JSON": (write_text("tokenizer.json", '{"model":'), "tokenizer.json"), "tokenizer empty": (write_text("tokenizer.json", "{}"), "tokenizer.json"),
    "tokenizer too large": (edit_config(vocab_size=299, eos_token_id=1), "embed_tokens"), "template unsupported": (write_text("chat_template.jinja", "{% include 'x' %}"), "include"),
    "template broken": (write_text("chat_template.jinja", "{% if x %}"), "chat template"), "tokenizer config": (write_text("tokenizer_config.json", "["), "tokenizer_config.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoints(name, tmp_path):
    damage, message = DAMAGE[name]
    mk.write(tmp_path / "src", shards=3)
    damage(tmp_path / "src")
    (tmp_path / "out").mkdir()
    out, err = run("ninfer-convert", tmp_path / "src", tmp_path / "out/m.ninfer", status=1)
    assert message in err and out == "", err
    assert err.strip().splitlines()[-1].startswith("ninfer-convert: ")
    assert os.listdir(tmp_path / "out") == []


def test_random_header_damage_does_not_crash(tmp_path):
    mk.write(tmp_path / "src")
    good = open(tmp_path / "src/model.safetensors", "rb").read()
    n, r = int.from_bytes(good[:8], "little"), random.Random(3)
    for _ in range(150):
        b = bytearray(good)
        for _ in range(r.randint(1, 5)): b[8 + r.randrange(n)] = r.choice(b'0123456789{}[],:"-eE \x00\xff')
        open(tmp_path / "src/model.safetensors", "wb").write(b)
        p = subprocess.run([f"{BUILD}/ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer"], capture_output=True, text=True)
        assert p.returncode in (0, 1), p
        if p.returncode == 0: os.remove(tmp_path / "m.ninfer")


def test_outputs_that_cannot_be(tmp_path):
    mk.write(tmp_path / "src")
    for out, message in (("m.bin", "must end in .ninfer"), ("none/m.ninfer", "none"), ("/proc/m.ninfer", "/proc")):
        _, err = run("ninfer-convert", tmp_path / "src", out if out[0] == "/" else tmp_path / out, status=1)
        assert message in err
    run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer")
    before = open(tmp_path / "m.ninfer", "rb").read()
    _, err = run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", status=1)
    assert "exists already" in err and open(tmp_path / "m.ninfer", "rb").read() == before
    _, err = run("ninfer-convert", tmp_path / "src", tmp_path / "p.ninfer", "--max-file-gb", "0.0005", status=1)
    assert "must have at least" in err
    for args in ([], ["x"], ["a", "b", "--type", "q4"], ["a", "b", "--threads", "0"], ["a", "b", "--codebook", "x"], ["a", "b", "--type", "i8", "--codebook", "nl"], ["a", "b", "c"], ["a", "b", "--frob"]):
        run("ninfer-convert", *args, status=2)


def test_killed_conversions_leave_nothing_that_opens(tmp_path):
    out, r, killed = tmp_path / "m.ninfer", random.Random(7), 0
    start = time.monotonic()
    subprocess.run([f"{BUILD}/ninfer-convert", MODEL, out, "--type", "f32", "--max-file-gb", "0.02"], check=True, capture_output=True)
    whole = time.monotonic() - start
    for f in glob.glob(f"{out}*"): os.remove(f)
    for _ in range(20):
        p = subprocess.Popen([f"{BUILD}/ninfer-convert", MODEL, out, "--type", "f32", "--max-file-gb", "0.02"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(r.random() * whole)
        p.send_signal(signal.SIGKILL)
        done = p.wait() == 0
        killed += not done
        if os.path.exists(out): # only a whole one may stand there
            run("ninfer-convert", "verify", out)
            for f in glob.glob(f"{out}*"): os.remove(f)
        for f in glob.glob(f"{out}*"): run("ninfer-convert", "verify", f, status=1)
    assert killed >= 10
    run("ninfer-convert", MODEL, out, "--max-file-gb", "0.004") # leftovers do not hinder, and go
    assert not glob.glob(f"{out}*.tmp")
    run("ninfer-convert", "verify", out)


def test_interrupted_conversions_clean_up(tmp_path):
    out = tmp_path / "m.ninfer"
    p = subprocess.Popen([f"{BUILD}/ninfer-convert", MODEL, out, "--type", "f32", "--threads", "1"], stderr=subprocess.PIPE, text=True)
    while not os.path.exists(f"{out}.tmp") and p.poll() is None: time.sleep(0.002)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate()
    if p.returncode == 0: pytest.skip("the conversion was faster than the signal")
    assert p.returncode == 1 and "cancelled" in err and os.listdir(tmp_path) == []


@pytest.mark.parametrize("limit", [5000, 100_000, 3_000_000, 20_000_000])
def test_full_disk(limit, tmp_path):
    """A file size limit fails writes as a full disk does (EFBIG for ENOSPC)."""
    p = subprocess.run([f"{BUILD}/ninfer-convert", MODEL, tmp_path / "m.ninfer"], capture_output=True, text=True,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert p.returncode == 1 and "ninfer-convert: " in p.stderr and os.listdir(tmp_path) == [], p


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], capture_output=True).returncode: pytest.skip("cannot mount a tmpfs here")
    try:
        _, err = run("ninfer-convert", MODEL, disk / "m.ninfer", status=1)
        assert "are free there" in err and os.listdir(disk) == []
        run("ninfer-convert", mk_src(tmp_path), disk / "small.ninfer")
    finally: subprocess.run(["umount", disk], check=True)


def mk_src(tmp_path):
    mk.write(tmp_path / "src")
    return tmp_path / "src"


def test_memory_does_not_grow_with_the_model(tmp_path):
    """Peak resident memory of conversions whose sources differ by 8 times."""
    peak = []
    for experts in (32, 256):
        c = mk.config(hidden_size=512, moe_intermediate_size=512, num_experts=experts, num_hidden_layers=1, layer_types=["full_attention"])
        mk.write(tmp_path / f"src{experts}", c, dtype="BF16", packed=True)
        p = subprocess.run(["/usr/bin/env", "python3", "-c", "import resource,subprocess,sys;subprocess.run(sys.argv[1:],check=True,stderr=subprocess.DEVNULL);print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
                            f"{BUILD}/ninfer-convert", str(tmp_path / f"src{experts}"), str(tmp_path / f"{experts}.ninfer")], capture_output=True, text=True, check=True)
        peak.append(int(p.stdout) // 1024)
    size = os.path.getsize(tmp_path / "src256/model.safetensors") >> 20
    assert size > 380 and peak[1] < 320, (peak, size) # 256 MB of mapped pages are given back at a time

"""qwen3_moe: random checkpoints against a numpy forward pass written from docs/models.md alone."""
import json
import numpy as np
import pytest

import make_checkpoint as mk
from support import run

SHAPES = [dict(), dict(num_attention_heads=4, num_key_value_heads=4, head_dim=8, num_experts=1, num_experts_per_tok=1, num_hidden_layers=1),
          dict(num_experts=9, num_experts_per_tok=9, norm_topk_prob=False, hidden_size=72, tie_word_embeddings=True),
          dict(num_attention_heads=6, num_key_value_heads=2, head_dim=34, moe_intermediate_size=40, rope_theta=5e6)]


def config(**changes):
    c = dict(model_type="qwen3_moe", vocab_size=300, hidden_size=40, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=24, num_experts=7,
             num_experts_per_tok=3, moe_intermediate_size=24, intermediate_size=99, max_position_embeddings=1024, rms_norm_eps=1e-6, rope_theta=10000.0, norm_topk_prob=True,
             tie_word_embeddings=False, hidden_act="silu", eos_token_id=299, mlp_only_layers=[], decoder_sparse_step=1, rope_scaling=None, use_sliding_window=False)
    c.update(changes)
    return c


def tensors(c, seed):
    r, out = np.random.default_rng(seed), {}
    d, H, G, D, E, I = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "moe_intermediate_size"))
    def put(name, *shape): out[name] = (r.standard_normal(shape) * 0.3 + (1 if len(shape) == 1 else 0)).astype(np.float32)
    put("model.embed_tokens.weight", c["vocab_size"], d)
    put("model.norm.weight", d)
    if not c["tie_word_embeddings"]: put("lm_head.weight", c["vocab_size"], d)
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        for n in ("input_layernorm", "post_attention_layernorm"): put(f"{p}{n}.weight", d)
        for n, a, b in (("q_proj", H * D, d), ("k_proj", G * D, d), ("v_proj", G * D, d), ("o_proj", d, H * D)): put(f"{p}self_attn.{n}.weight", a, b)
        for n in ("q_norm", "k_norm"): put(f"{p}self_attn.{n}.weight", D)
        put(p + "mlp.gate.weight", E, d)
        for e in range(E):
            for n, a, b in (("gate_proj", I, d), ("up_proj", I, d), ("down_proj", d, I)): put(f"{p}mlp.experts.{e}.{n}.weight", a, b)
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def forward(c, w, ids, stored=lambda x: x):
    """stored: what the KV cache gives back for k and v [T, heads, D]."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    d, H, G, D = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    T = len(ids)
    def norm(x, name): return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]
    angle = np.arange(T)[:, None] * c["rope_theta"] ** (-np.arange(0, D, 2) / D)
    def rotate(x):  # [T, heads, D], element i turns with i + D/2
        a, b = x[..., :D // 2], x[..., D // 2:]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    x = w["model.embed_tokens.weight"][ids]
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (np.reshape(h @ w[f"{p}self_attn.{n}_proj.weight"].T, (T, -1, D)) for n in "qkv")
        q, k = rotate(norm(q, p + "self_attn.q_norm.weight")), rotate(norm(k, p + "self_attn.k_norm.weight"))
        k, v = stored(k), stored(v)
        out = np.zeros((T, H, D))
        for head in range(H):
            s = q[:, head] @ k[:, head * G // H].T / np.sqrt(D)
            out[:, head] = softmax(np.where(np.tril(np.ones((T, T))) > 0, s, -np.inf)) @ v[:, head * G // H]
        x = x + out.reshape(T, H * D) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        probability = softmax(h @ w[p + "mlp.gate.weight"].T)
        for t in range(T):
            chosen = np.argsort(-probability[t], kind="stable")[:c["num_experts_per_tok"]]
            weight = probability[t, chosen]
            if c["norm_topk_prob"]: weight = weight / weight.sum()
            for e, g in zip(chosen, weight):
                m = {n: w[f"{p}mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up", "down")}
                a = m["gate"] @ h[t]
                x[t] = x[t] + g * (m["down"] @ (a / (1 + np.exp(-a)) * (m["up"] @ h[t])))
    return norm(x, "model.norm.weight") @ w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"].T


def logits(model, ids, folder, *flags):
    run("ninfer", model, "--ids", json.dumps(ids), "--dump-logits", folder / "l.npy", *flags)
    return np.load(folder / "l.npy")


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_logits(shape, tmp_path):
    c = config(**SHAPES[shape])
    w = mk.write(tmp_path / "src", c, weights=tensors(c, 10 + shape))
    run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", "--type", "f32")
    ids = [int(i) for i in np.random.default_rng(shape).integers(0, 256, 21)]
    got = logits(tmp_path / "m.ninfer", ids, tmp_path)
    assert np.abs(got - forward(c, w, ids)).max() <= 2e-3
    # Threads and chunks change nothing, in integer types as in this one.
    for kind in ("f32", "c4", "s6"):
        run("ninfer-convert", tmp_path / "src", tmp_path / f"{kind}.ninfer", "--type", kind)
        one = logits(tmp_path / f"{kind}.ninfer", ids, tmp_path, "--threads", "1")
        for flags in (["--threads", "2", "--prefill-chunk", "1"], ["--threads", "7", "--prefill-chunk", "5"]):
            assert logits(tmp_path / f"{kind}.ninfer", ids, tmp_path, *flags).tobytes() == one.tobytes()


@pytest.mark.parametrize("change, text", [(dict(mlp_only_layers=[1]), "mlp_only_layers"), (dict(decoder_sparse_step=2), "decoder_sparse_step"),
                                          (dict(rope_scaling=dict(rope_type="yarn", factor=4.0)), "rope_scaling"), (dict(use_sliding_window=True), "use_sliding_window"),
                                          (dict(attention_bias=True), "attention_bias")])
def test_what_is_not_supported_is_refused(change, text, tmp_path):
    c = config(**change)
    mk.write(tmp_path / "src", c, weights=tensors(config(), 1))
    assert text in run("ninfer-convert", tmp_path / "src", tmp_path / "m.ninfer", status=1)[1]

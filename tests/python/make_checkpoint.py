"""Small random Qwen3.5-MoE checkpoints of any shape, in the layouts that published ones use."""
import json, os, struct
import numpy as np

ODD = dict(vocab_size=300, hidden_size=40, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"], num_attention_heads=3,
           num_key_value_heads=1, head_dim=24, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=20,
           linear_conv_kernel_dim=3, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=36)


def config(**changes):
    c = dict(model_type="qwen3_5_moe_text", max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False, hidden_act="silu", eos_token_id=299,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5), mtp_num_hidden_layers=0, norm_topk_prob=True, **ODD)
    c.update(changes)
    return c


def tensors(c, seed, packed=False, scale=0.3):
    r, out = np.random.default_rng(seed), {}
    d, H, G, D = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    K, V, dk, dv = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"]
    E, I, S = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    def put(name, *shape): out[name] = (r.standard_normal(shape) * scale).astype(np.float32)
    put("model.embed_tokens.weight", c["vocab_size"], d)
    put("model.norm.weight", d)
    if not c["tie_word_embeddings"]: put("lm_head.weight", c["vocab_size"], d)
    for l, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{l}."
        put(p + "input_layernorm.weight", d)
        put(p + "post_attention_layernorm.weight", d)
        if kind == "full_attention":
            for n, a, b in (("q_proj", 2 * H * D, d), ("k_proj", G * D, d), ("v_proj", G * D, d), ("o_proj", d, H * D)): put(f"{p}self_attn.{n}.weight", a, b)
            put(p + "self_attn.q_norm.weight", D)
            put(p + "self_attn.k_norm.weight", D)
        else:
            C = 2 * K * dk + V * dv
            for n, a, b in (("in_proj_qkv", C, d), ("in_proj_z", V * dv, d), ("in_proj_b", V, d), ("in_proj_a", V, d), ("out_proj", d, V * dv)): put(f"{p}linear_attn.{n}.weight", a, b)
            put(p + "linear_attn.conv1d.weight", C, 1, c["linear_conv_kernel_dim"])
            put(p + "linear_attn.A_log", V)
            put(p + "linear_attn.dt_bias", V)
            put(p + "linear_attn.norm.weight", dv)
        put(p + "mlp.gate.weight", E, d)
        put(p + "mlp.shared_expert_gate.weight", 1, d)
        for n, a, b in (("gate_proj", S, d), ("up_proj", S, d), ("down_proj", d, S)): put(f"{p}mlp.shared_expert.{n}.weight", a, b)
        if packed:
            put(p + "mlp.experts.gate_up_proj", E, 2 * I, d)
            put(p + "mlp.experts.down_proj", E, d, I)
        else:
            for e in range(E):
                for n, a, b in (("gate_proj", I, d), ("up_proj", I, d), ("down_proj", d, I)): put(f"{p}mlp.experts.{e}.{n}.weight", a, b)
    return out


def to_bytes(x, dtype):
    if dtype == "F32": return x.astype("<f4").tobytes()
    if dtype == "F16": return x.astype("<f2").tobytes()
    if dtype == "BF16": return (x.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes() # truncation: the file's values are what counts
    return x.tobytes()


def write_safetensors(path, items):
    """items: name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, raw) in items.items():
        header[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    h = json.dumps(header).encode()
    h += b" " * (-len(h) % 8)
    open(path, "wb").write(struct.pack("<Q", len(h)) + h + data)


def tokenizer_json(vocab=256):
    alphabet = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
    n = 256
    for b in range(256):
        if alphabet[b] is None: alphabet[b], n = chr(n), n + 1
    return dict(version="1.0", added_tokens=[dict(id=299, content="<|end|>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)], normalizer=None,
                pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True), post_processor=None,
                decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                           vocab={alphabet[b]: b for b in range(256)}, merges=[]))


def write(folder, c=None, seed=1, dtype="F32", packed=False, shards=1, rename=lambda n: n, weights=None):
    os.makedirs(folder, exist_ok=True)
    c = c or config()
    w = weights or tensors(c, seed, packed)
    names = sorted(w)
    index = {}
    for s in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = names[s::shards]
        write_safetensors(f"{folder}/{file}", {rename(n): (dtype, w[n].shape, to_bytes(w[n], dtype)) for n in part})
        index.update({rename(n): file for n in part})
    if shards > 1: json.dump(dict(metadata={}, weight_map=index), open(f"{folder}/model.safetensors.index.json", "w"))
    json.dump(c, open(f"{folder}/config.json", "w"))
    json.dump(tokenizer_json(), open(f"{folder}/tokenizer.json", "w"))
    json.dump(dict(eos_token="<|end|>"), open(f"{folder}/tokenizer_config.json", "w"))
    return w

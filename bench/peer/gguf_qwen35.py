"""A qwen3_5_moe container as GGUF (llama.cpp's qwen35moe), its matrices rounded by ggml to any type that ggml has. For
bench/quality.py: the container is read as f32 and stored as llama.cpp's own converter would store the checkpoint."""
import ctypes, json, sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
import ninfer_reader  # noqa: E402

QUANT = gguf.GGMLQuantizationType
ATTENTION = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
LINEAR = {"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.conv1d": "ssm_conv1d",
          "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.norm": "ssm_norm",
          "linear_attn.out_proj": "ssm_out"}
BOTH = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"}
NAMES = ATTENTION | LINEAR | BOTH
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
FLOAT = ("mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_b", "linear_attn.in_proj_a", "linear_attn.conv1d")


class Ggml:
    """ggml's quantisers, from the library that the peer was built with."""

    def __init__(self, folder):
        self.lib = ctypes.CDLL(str(folder / "libggml-base.so"))
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                                 ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]

    def quantise(self, x, kind, weights=None):
        """f32 [..., cols] -> uint8 [..., bytes of a row]; weights [cols] of the columns' errors, or None."""
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, cols = x.size // x.shape[-1], x.shape[-1]
        if cols % block:
            sys.exit(f"quality: rows of {cols} columns have no {kind.name}: its blocks have {block}")
        x = np.ascontiguousarray(x, np.float32)
        out = np.zeros((rows, cols // block * size), np.uint8)
        if weights is not None:
            weights = np.ascontiguousarray(weights, np.float32).ctypes.data_as(ctypes.c_void_p)
        done = self.lib.ggml_quantize_chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, rows, cols, weights)
        if done != out.size:
            sys.exit(f"quality: ggml wrote {done} bytes of {kind.name}, not {out.size}")
        return out.reshape(*x.shape[:-1], -1)


def tile_heads(x, axis, key_heads, per_key, dim):
    """Value heads from grouped by key head to llama.cpp's order, in which key heads repeat as a whole."""
    shape = x.shape
    x = x.reshape(*shape[:axis], key_heads, per_key, dim, *shape[axis + 1:]).swapaxes(axis, axis + 1)
    return np.ascontiguousarray(x).reshape(shape)


def reorder(name, x, c):
    """A tensor of Gated DeltaNet in llama.cpp's order of value heads."""
    k, v, dim = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_value_head_dim"]
    keys = 2 * k * c["linear_key_head_dim"]
    if name in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        return np.concatenate([x[:keys], tile_heads(x[keys:], 0, k, v // k, dim)])
    if name == "linear_attn.in_proj_z":
        return tile_heads(x, 0, k, v // k, dim)
    if name in ("linear_attn.in_proj_a", "linear_attn.in_proj_b", "linear_attn.A_log", "linear_attn.dt_bias"):
        return tile_heads(x, 0, k, v // k, 1)
    return tile_heads(x, 1, k, v // k, dim) if name == "linear_attn.out_proj" else x


def header(w, c):
    rope = c["rope_parameters"]
    w.add_name("quality")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    w.add_rope_dimension_sections([*rope.get("mrope_section", [11, 11, 10]), 0][:4])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_full_attention_interval(c["full_attention_interval"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("none")  # token ids go in, logits come out


def tensors(container, config):
    """(name in GGUF, our name, f32 array) of the text part, one at a time; a bank gives three."""
    for o in container.list:
        if o.kind == "blob" or o.name.startswith("mtp."):
            continue
        if o.name in ("embed_tokens", "norm", "lm_head"):
            name = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[o.name]
            yield f"{name}.weight", o.name, container.matrix(o.name) + (1 if o.name == "norm" else 0)
            continue
        _, layer, part = o.name.split(".", 2)
        if o.kind == "bank":
            for m, name in enumerate(EXPERTS):
                yield (f"blk.{layer}.{name}.weight", o.name + (".down_proj" if m == 2 else ".gate_up_proj"),
                       np.stack([container.expert(o.name, e, m) for e in range(o.experts)]))
            continue
        x = reorder(part, container.matrix(o.name), config)
        if part == "linear_attn.A_log":
            yield f"blk.{layer}.ssm_a", o.name, -np.exp(x)
        elif part == "linear_attn.dt_bias":
            yield f"blk.{layer}.ssm_dt.bias", o.name, x
        elif part in NAMES:
            stored_minus_one = part.endswith("norm") and part != "linear_attn.norm"
            x = x[0] if part == "mlp.shared_expert_gate" else x
            yield f"blk.{layer}.{NAMES[part]}.weight", o.name, x + 1 if stored_minus_one else x
        else:
            sys.exit(f"quality: {container.path}: tensor '{o.name}' has no place in a qwen35moe GGUF")


def write_gguf(container_path, path, ggml, experts, dense, importance=None):
    """Experts in one type, other matrices in another, what we store as f32 (routers, gates, norms) in f32. `importance`:
    {our name: mean squares [experts or 1, columns]}; out_proj's columns follow its heads' order."""
    with ninfer_reader.Container(str(container_path)) as container:
        config = json.loads(container.metadata["model.config"])
        if config["model_type"] != "qwen3_5_moe_text":
            sys.exit(f"quality: {container_path}: family {config['model_type']}, not qwen3_5_moe_text")
        w = gguf.GGUFWriter(str(path), "qwen35moe")
        header(w, config)
        for name, ours, x in tensors(container, config):
            bank = x.ndim == 3
            if x.ndim == 1 or ours.split(".", 2)[-1] in FLOAT or (kind := experts if bank else dense) == QUANT.F32:
                w.add_tensor(name, np.ascontiguousarray(x, np.float32))
                continue
            weights = importance.get(ours) if importance else None
            if weights is not None and "out_proj" in ours:
                weights = reorder("linear_attn.out_proj", weights, config)
            if bank and weights is not None:
                data = np.stack([ggml.quantise(x[e], kind, weights[e]) for e in range(len(x))])
            else:
                data = ggml.quantise(x, kind, None if weights is None else weights[0])
            w.add_tensor(name, data, raw_dtype=kind)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

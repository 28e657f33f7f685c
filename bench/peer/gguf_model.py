"""A qwen3_moe container as GGUF, for the comparison with llama.cpp. Nothing is quantised again: a c4 group with the
linear codebook is a Q4_0 block and an i8 group a Q8_0 block with the same scale and the same codes, so both programs
compute with the same numbers and read the same bytes. Reads the container with the tests' independent reader."""
import json, sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
import ninfer_reader  # noqa: E402

QUANT = gguf.GGMLQuantizationType
TYPES = {"c4": QUANT.Q4_0, "i8": QUANT.Q8_0, "f32": QUANT.F32, "bf16": QUANT.BF16, "f16": QUANT.F16}
ROW_BYTES = {"c4": 18, "i8": 34, "f32": 128, "bf16": 64, "f16": 64}  # of 32 columns in a GGUF row
DENSE = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}
EXPERT = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def row_bytes(f, cols):
    return cols // 32 * ROW_BYTES[f.type]


def rows_of_tiles(f, tiles):
    """Tiles [n, bytes of one] of any format of TYPES -> rows [8 n, bytes] as GGUF stores them."""
    blocks = tiles.reshape(len(tiles), -1, sum(f.parts()))
    if f.type in ("c4", "i8"):
        scales = blocks[..., :16].reshape(*blocks.shape[:2], 8, 2)
        codes = blocks[..., 16:].reshape(*blocks.shape[:2], -1, 8, 4).swapaxes(2, 3)  # runs -> rows
        rows = np.concatenate([scales, codes.reshape(*blocks.shape[:2], 8, -1)], axis=-1)
    else:
        size = ninfer_reader.ELEMENT_BYTES[f.type]
        rows = blocks.reshape(*blocks.shape[:2], 32, 8, size).swapaxes(2, 3)
    rows = rows.reshape(*blocks.shape[:2], 8, ROW_BYTES[f.type]).swapaxes(1, 2)
    return np.ascontiguousarray(rows).reshape(len(tiles) * 8, -1)


def check(f, rows, cols, what):
    if f.type not in TYPES or (f.type == "c4" and (f.codebook, f.scale) != (1, ninfer_reader.F16)):
        sys.exit(f"compare: {what}: GGUF has no type for {f}")
    if rows % 8 or cols % 32:
        sys.exit(f"compare: {what}: {rows} x {cols} is padded in the container")


def dense(container, o):
    """A tensor's bytes as GGUF stores them, uint8 [rows, bytes] (float vectors: f32)."""
    data = np.frombuffer(container.stored(o), np.uint8)
    if not o.tiled:
        return data.view("<f4")
    check(o.format, *o.shape, o.name)
    return rows_of_tiles(o.format, data.reshape(o.shape[0] // 8, -1))


def bank(container, o, m):
    """Matrix m of all experts, uint8 [experts, rows, bytes]."""
    x, data = o.matrices[m], np.frombuffer(container.stored(o), np.uint8)
    check(x.format, x.rows, x.cols, o.name)
    tile = ninfer_reader.tile_bytes(x.format, x.cols)
    out = np.empty((o.experts, x.rows, row_bytes(x.format, x.cols)), np.uint8)
    for e in range(o.experts):
        first = data[e * o.stride + x.offset:]
        out[e] = rows_of_tiles(x.format, np.lib.stride_tricks.as_strided(first, (x.rows // 8, tile), (x.stride, 1)))
    return out


def header(w, config):
    layers = config["num_hidden_layers"]
    w.add_name("random")
    w.add_block_count(layers)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["moe_intermediate_size"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_expert_count(config["num_experts"])
    w.add_expert_used_count(config["num_experts_per_tok"])
    w.add_vocab_size(config["vocab_size"])
    w.add_tokenizer_model("none")  # token ids go in, logits come out


def plan(container):
    """(name in GGUF, shape, format, function that gives the bytes) of every tensor."""
    config = json.loads(container.metadata["model.config"])
    if config["model_type"] != "qwen3_moe":
        sys.exit(f"compare: {container.path}: family {config['model_type']}, only qwen3_moe is written as GGUF")
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    for layer in range(config["num_hidden_layers"]):
        names.update({f"layers.{layer}.{a}": f"blk.{layer}.{b}" for a, b in DENSE.items()})
    tensors = []
    for o in container.list:
        if o.kind == "blob":
            continue
        if o.kind == "bank":
            layer = o.name.split(".")[1]
            for m, name in enumerate(EXPERT):
                x = o.matrices[m]
                tensors.append((f"blk.{layer}.{name}.weight", (o.experts, x.rows, x.cols), x.format,
                                lambda o=o, m=m: bank(container, o, m)))
        else:
            if o.name not in names:
                sys.exit(f"compare: {container.path}: tensor '{o.name}' has no place in a qwen3moe GGUF")
            tensors.append((names.pop(o.name) + ".weight", o.shape, o.format, lambda o=o: dense(container, o)))
    if names:
        sys.exit(f"compare: {container.path}: misses {', '.join(names)}")
    return config, tensors


def write_gguf(container_path, path):
    """Writes the GGUF; memory holds one tensor at a time."""
    with ninfer_reader.Container(str(container_path)) as container:
        config, tensors = plan(container)
        w = gguf.GGUFWriter(str(path), "qwen3moe")
        header(w, config)
        for name, shape, f, _ in tensors:  # of a matrix the writer wants the shape in bytes
            stored = shape if len(shape) == 1 else (*shape[:-1], row_bytes(f, shape[-1]))
            kind = np.dtype(np.float32 if len(shape) == 1 else np.uint8)
            w.add_tensor_info(name, stored, kind, int(np.prod(stored)) * kind.itemsize, TYPES[f.type])
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for i, (name, _, _, data) in enumerate(tensors):
            print(f"\r\033[Kwrite {path}: {i + 1}/{len(tensors)} {name}", end="", file=sys.stderr)
            w.write_tensor_data(data())
        print(file=sys.stderr)
        w.close()

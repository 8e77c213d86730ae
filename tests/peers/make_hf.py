"""Tiny models of Hugging Face families, and what transformers computes from them, in float64.

    python3 tests/peers/make_hf.py          writes tests/golden/hf/, where transformers is installed
    python3 tests/peers/make_hf.py DIR ..   loads folders that `./tl export --format hf` wrote

No weights are kept: element i of tensor k (names sorted, k from 1) is the fill F(k)[i] of
tests/support/init.lua, times 0.25 for matrices and biases, 1 + 0.25 F for gains, rounded to f32.

    FAMILY.config.json  as transformers writes it
    golden.json         ids of the sequences; for each family every sequence alone ("single") and
                        all of them as one batch: loss over all targets, logits, gradients; and the
                        likeliest tokens after the first one
"""

import json
import os
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.numpy import load_file, save_file

FOLDER = os.path.join(os.path.dirname(__file__), "..", "golden", "hf")
LENGTHS = [9, 2, 1, 20]
EXACT = dict(dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
COMMON = dict(vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, intermediate_size=80, max_position_embeddings=128,
              bos_token_id=0, eos_token_id=1)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=32,
            beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.7)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
              v_head_dim=10, first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
              moe_intermediate_size=16, n_group=4, topk_group=2)
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM,
              dict(head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM,
              dict(head_dim=16, tie_word_embeddings=True, use_sliding_window=True,
                   sliding_window=6, max_window_layers=1)),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM,
                dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=7)),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM,
                  dict(head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                       mlp_only_layers=[0], norm_topk_prob=True)),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM,
                    dict(LATENT, num_hidden_layers=3, q_lora_rank=24, n_shared_experts=2,
                         routed_scaling_factor=1.5, rope_parameters=YARN)),
    "deepseek_v3_half": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM,
                         dict(LATENT, q_lora_rank=None, rope_interleave=False, n_shared_experts=1,
                              norm_topk_prob=False, tie_word_embeddings=True)),
    "qwen3_yarn": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM,
                   dict(head_dim=16, rope_parameters=dict(
                       rope_type="yarn", rope_theta=500.0, factor=4.0,
                       original_max_position_embeddings=32))),
}


def fill(stream, count):
    """F(stream), the fill of tests/support/init.lua."""
    h = (numpy.arange(count, dtype=numpy.uint64) + stream * 0x9E3779B9) & 0xFFFFFFFF
    h ^= h >> 16
    h = h * 0x7FEB352D & 0xFFFFFFFF
    h ^= h >> 15
    h = h * 0x846CA68B & 0xFFFFFFFF
    h ^= h >> 16
    return (h >> 8).astype(numpy.float64) * 2.0**-23 - 1


def is_gain(name):
    return name.endswith("norm.weight")


def write_weights(folder):
    """Replaces the values of a saved model by those of the formula."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for k, name in enumerate(sorted(tensors), start=1):
        values = 0.25 * fill(k, tensors[name].size) + (1 if is_gain(name) else 0)
        tensors[name] = values.astype(numpy.float32).reshape(tensors[name].shape)
    save_file(tensors, path, metadata={"format": "pt"})


def rounded(x):
    return float("%.9g" % x)


def numbers(tensor, count):
    """Norm, an order-sensitive checksum, and a few elements by flat index."""
    t = tensor.detach().double().flatten()
    i = torch.arange(t.numel())
    dot = (t * ((31 * i) % 97 - 48) / 48).sum()
    places = [j * (t.numel() - 1) // count for j in range(count)]
    samples = [[at, rounded(t[at])] for at in places]
    return {"norm": rounded(t.norm()), "dot": rounded(dot), "samples": samples}


def losses_of(model, ids):
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    targets = torch.tensor(ids[1:], dtype=torch.long)
    return logits, torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="sum")


def result(model, sequences):
    """Loss over all targets of the sequences, each run alone."""
    model.zero_grad()
    logits, targets, total = [], 0, 0
    for ids in sequences:
        z, loss = losses_of(model, ids)
        logits.append(z)
        if len(ids) > 1:
            targets, total = targets + len(ids) - 1, total + loss
    out = {"targets": targets, "logits": numbers(torch.cat(logits), 12), "loss": 0.0}
    if targets:
        (total / targets).backward()
        out["loss"] = rounded(total / targets)
        count = 4 if len(sequences) > 1 else 0
        out["grads"] = {n: numbers(p.grad, count) for n, p in model.named_parameters()}
    return out


def greedy(model, ids, count):
    """The likeliest token after ids, and so on; and how far the second one ever was, at least."""
    made, least = list(ids), float("inf")
    for _ in range(count):
        best = model(input_ids=torch.tensor([made])).logits[0, -1].topk(2)
        least = min(least, float(best.values[0] - best.values[1]))
        made.append(int(best.indices[0]))
    return {"ids": made[len(ids):], "least": rounded(least)}


def sequences_of(vocab):
    ids = ((fill(1000, sum(LENGTHS)) + 1) / 2 * vocab).astype(int).tolist()
    return [[ids.pop(0) for _ in range(length)] for length in LENGTHS]


def golden(name, sequences):
    make_config, make_model, own = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        make_model(make_config(**{**COMMON, **own})).save_pretrained(folder)
        write_weights(folder)
        with open(os.path.join(folder, "config.json")) as file:
            text = file.read()
        model = make_model.from_pretrained(folder, **EXACT)
    with open(os.path.join(FOLDER, name + ".config.json"), "w") as file:
        file.write(text)
    return {"single": [result(model, [s]) for s in sequences], "batch": result(model, sequences),
            "greedy": greedy(model, sequences[0], 24)}


def write_golden():
    os.makedirs(FOLDER, exist_ok=True)
    sequences = sequences_of(COMMON["vocab_size"])
    families = {name: golden(name, sequences) for name in MODELS}
    about = {"transformers": transformers.__version__, "torch": torch.__version__}
    text = json.dumps({"about": about, "input_ids": sequences, "families": families},
                      separators=(",", ":"))
    with open(os.path.join(FOLDER, "golden.json"), "w") as file:
        file.write(text.replace('},"', '},\n"') + "\n")


def check(folder):
    """Loads an exported folder; prints what a person compares with the run that wrote it."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **EXACT)
    problems = {key: sorted(value) for key, value in info.items() if value}
    logits, loss = losses_of(model, sequences_of(model.config.vocab_size)[-1])
    print(json.dumps({"folder": folder, "class": type(model).__name__, "problems": problems,
                      "loss": float(loss) / (LENGTHS[-1] - 1), "logits": float(logits.norm())}))


if sys.argv[1:]:
    for argument in sys.argv[1:]:
        check(argument)
else:
    write_golden()

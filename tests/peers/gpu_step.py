# gpu_step.py - the peer of `./tl bench step RECIPE device=cuda`: a decoder in PyTorch, on a GPU.
#
# Grouped-query attention with rope, RMSNorm and SwiGLU as in recipes/llama_1b.lua; with "experts"
# as in recipes/moe_1b.lua: a dense first layer, then sigmoid scores with groups, the best few and a
# shared one by torch._grouped_mm. Attention by cuDNN where it takes these heads, else by flash;
# fused AdamW. Weights and moments are bf16, which is less work than Tidelock's masters of f32; not
# the same bits.
#
# Sizes come as one JSON argument; without "experts" the line that names them is left out:
#   {"vocab": 32000, "dim": 1024, "layers": 16, "heads": 16, "kv_heads": 4, "dense": 2816,
#    "experts": 64, "slots": 6, "hidden": 320, "groups": 8, "top_groups": 4, "scale": 2.5,
#    "samples": 16, "length": 2048}
# Request {"micro": 8, "compile": false, "steps": 2}: that many steps in micro-batches.
import json
import sys

import peer

try:
    import torch
    from torch import nn
    from torch.nn import functional
except (ImportError, OSError) as problem:
    peer.skip(f"PyTorch does not load for this python3 ({problem}); pip install torch")
if not torch.cuda.is_available():
    peer.skip("PyTorch finds no GPU")
from decoder import Attention, SwiGLU

size = json.loads(sys.argv[1])
torch.manual_seed(0)
width = size["dim"] // size["heads"]


def rope_table():
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32, device="cuda") / width)
    angles = torch.arange(size["length"], dtype=torch.float32, device="cuda")[:, None] * rates
    return torch.cos(angles).bfloat16(), torch.sin(angles).bfloat16()


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        experts, dim, hidden = size["experts"], size["dim"], size["hidden"]
        self.router = nn.Linear(dim, experts, bias=False)
        self.register_buffer("bias", torch.zeros(experts))
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, dim) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, dim, hidden) * 0.02)
        self.shared = SwiGLU(dim, hidden)

    def route(self, x):
        scores = torch.sigmoid(self.router(x).float())
        choice = scores + self.bias
        groups = choice.view(len(x), size["groups"], -1)
        best = groups.topk(2, dim=-1)[0].sum(-1).topk(size["top_groups"], dim=-1)[1]
        stays = torch.zeros(groups.shape[:2], dtype=torch.bool, device=x.device)
        stays.scatter_(1, best, True)
        choice = groups.masked_fill(~stays[..., None], float("-inf")).view_as(choice)
        expert = choice.topk(size["slots"], dim=-1)[1]
        weight = scores.gather(1, expert)
        return expert, (weight / (weight.sum(-1, keepdim=True) + 1e-20) * size["scale"])

    def forward(self, x):
        samples, length, dim = x.shape
        x = x.reshape(-1, dim)
        expert, weight = self.route(x)
        order = torch.sort(expert.flatten(), stable=True)[1]
        counts = torch.zeros(size["experts"], dtype=torch.int32, device=x.device)
        counts.index_add_(0, expert.flatten(), torch.ones_like(order, dtype=torch.int32))
        offsets = counts.cumsum(0).to(torch.int32)
        rows = x.index_select(0, order // size["slots"])
        gate, up = torch._grouped_mm(
            rows, self.gate_up.transpose(-2, -1), offs=offsets).chunk(2, dim=-1)
        act = functional.silu(gate) * up
        out = torch._grouped_mm(act, self.down.transpose(-2, -1), offs=offsets)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=x.device)
        home = out.index_select(0, place).view(-1, size["slots"], dim)
        y = (home * weight[..., None].to(home.dtype)).sum(1) + self.shared(x)
        return y.view(samples, length, dim)


class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(size["dim"], 1e-5), nn.RMSNorm(size["dim"], 1e-5)
        self.attention = Attention(size)
        dense = index == 0 or not size.get("experts")
        self.mlp = SwiGLU(size["dim"], size["dense"]) if dense else Experts()

    def forward(self, x, table):
        x = x + self.attention(self.norm1(x), table)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(size["vocab"], size["dim"])
        self.layers = nn.ModuleList(Layer(i) for i in range(size["layers"]))
        self.norm = nn.RMSNorm(size["dim"], 1e-5)
        self.head = nn.Linear(size["dim"], size["vocab"], bias=False)

    def forward(self, ids, targets, table):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, table)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return functional.cross_entropy(logits.float(), targets.flatten(), reduction="sum")


def choose_attention():
    """The name of what is left on for attention: cuDNN, or flash where that has not these heads."""
    shape = (1, size["heads"], 128, width)
    q = torch.zeros(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    k = torch.zeros((1, size["kv_heads"], 128, width), dtype=torch.bfloat16, device="cuda")
    for name in ("cudnn", "flash"):
        for other in ("cudnn", "flash", "mem_efficient", "math"):
            getattr(torch.backends.cuda, f"enable_{other}_sdp")(other == name)
        try:
            functional.scaled_dot_product_attention(
                q, k, k, is_causal=True, enable_gqa=True).sum().backward()
            return name
        except RuntimeError:
            continue
    for other in ("cudnn", "flash", "mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{other}_sdp")(True)
    return "PyTorch's choice"


attention = choose_attention()
with torch.device("cuda"):
    model = Model().bfloat16()
optimizer = torch.optim.AdamW(
    model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
compiled, table = torch.compile(model), rope_table()
tokens = torch.randint(size["vocab"], (1 << 20,), device="cuda")


def step(run, micro):
    samples, length = size["samples"], size["length"]
    starts = torch.randint(len(tokens) - length - 1, (samples,)).tolist()
    batch = torch.stack([tokens[s:s + length + 1] for s in starts])
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device="cuda")
    for first in range(0, samples, micro):
        piece = batch[first:first + micro]
        loss = run(piece[:, :-1], piece[:, 1:], table) / (samples * length)
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


warm = set()


def answer(request):
    run, micro = compiled if request["compile"] else model, request["micro"]
    kind = request["compile"], micro
    try:
        if kind not in warm:
            warm.add(kind)
            step(run, micro)
            step(run, micro)
        losses = []

        def work():
            losses.extend(step(run, micro) for _ in range(request["steps"]))
            losses.append(float(losses[-1]))
        return {**peer.measure(work), "loss": losses[-1]}
    except Exception as problem:
        return {"skip": str(problem).strip().split("\n")[0][:200]}


peer.serve(f"PyTorch {torch.__version__.split('+')[0]}, attention by {attention}, "
           f"{torch.cuda.get_device_name()}", answer)

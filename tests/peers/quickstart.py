# quickstart.py - the peer of `./tl bench step`: recipes/quickstart.lua written for PyTorch.
#
# The same model (RMSNorm, grouped-query attention with rope, SwiGLU), loss, clip and AdamW in f32,
# from the same texts; not the same bits. Sizes come as one JSON argument:
#   {"vocab": 256, "dim": 128, "layers": 4, "heads": 8, "kv_heads": 4, "hidden": 384,
#    "samples": 16, "length": 256, "threads": 2, "texts": ["/usr/share/..."]}
# Request {"micro": 4, "compile": false, "steps": 2}: that many steps in micro-batches of 4 samples.
import json
import sys

import peer

try:
    import torch
    from torch import nn
    from torch.nn import functional
except (ImportError, OSError) as problem:
    peer.skip(f"PyTorch does not load for this python3 ({problem}); pip install torch")
from decoder import Attention, SwiGLU

size = json.loads(sys.argv[1])
torch.set_num_threads(size["threads"])
torch.manual_seed(0)
width = size["dim"] // size["heads"]


def rope_table():
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(size["length"], dtype=torch.float32)[:, None] * rates
    return torch.cos(angles), torch.sin(angles)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(size["dim"], 1e-5), nn.RMSNorm(size["dim"], 1e-5)
        self.attention = Attention(size)
        self.mlp = SwiGLU(size["dim"], size["hidden"])

    def forward(self, x, table):
        x = x + self.attention(self.norm1(x), table)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(size["vocab"], size["dim"])
        self.layers = nn.ModuleList(Layer() for _ in range(size["layers"]))
        self.norm = nn.RMSNorm(size["dim"], 1e-5)
        self.head = nn.Linear(size["dim"], size["vocab"], bias=False)
        self.table = rope_table()

    def forward(self, ids, targets):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.table)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum")


def text():
    joined = b"".join(open(name, "rb").read() for name in size["texts"])
    return torch.tensor(list(joined), dtype=torch.int64) % size["vocab"]


model, tokens = Model(), text()
optimizer = torch.optim.AdamW(
    model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
compiled = torch.compile(model)


def step(run, micro):
    samples, length = size["samples"], size["length"]
    starts = torch.randint(len(tokens) - length - 1, (samples,))
    batch = torch.stack([tokens[s:s + length + 1] for s in starts])
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for first in range(0, samples, micro):
        piece = batch[first:first + micro]
        loss = run(piece[:, :-1], piece[:, 1:]) / (samples * length)
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(total)


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
        found = peer.measure(lambda: losses.extend(
            step(run, micro) for _ in range(request["steps"])))
        return {**found, "loss": losses[-1]}
    except Exception as problem:
        return {"skip": str(problem).strip().split("\n")[0][:200]}


peer.serve(f"PyTorch {torch.__version__.split('+')[0]}", answer)

# decoder.py - what both training peers are made of: rope, grouped-query attention and SwiGLU.
#
# `size` is the JSON argument of a peer; only "dim", "heads" and "kv_heads" are read here. Nothing
# here chooses a device or a dtype: modules are made where the peer makes them.
import torch
from torch import nn
from torch.nn import functional


def rope(x, table):
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.width = size["dim"] // size["heads"]
        self.kv = size["kv_heads"] * self.width
        self.qkv = nn.Linear(size["dim"], size["dim"] + 2 * self.kv, bias=False)
        self.o = nn.Linear(size["dim"], size["dim"], bias=False)

    def forward(self, x, table):
        samples, length, dim = x.shape
        q, k, v = self.qkv(x).split((dim, self.kv, self.kv), dim=-1)
        q, k, v = (t.view(samples, length, -1, self.width).transpose(1, 2) for t in (q, k, v))
        o = functional.scaled_dot_product_attention(
            rope(q, table), rope(k, table), v, is_causal=True, enable_gqa=True)
        return self.o(o.transpose(1, 2).reshape(samples, length, dim))


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)

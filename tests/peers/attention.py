# attention.py - the peer of `./tl bench attention`: PyTorch's causal attention on the same GPU.
#
# Request {"lengths": [..], "heads": 32, "kv_heads": 8, "width": 128, "way": .., "pass": ..,
# "repeats": n}: seconds of one run out of n that follow each other.
#
#   way "cudnn", "flash"   scaled_dot_product_attention with that backend; equal lengths only
#   way "varlen"           flash attention over packed segments
#   pass "forward", "both" both: gradients of q, k and v too, deterministic where there are such
import peer

try:
    import torch
except ImportError:
    peer.skip("PyTorch is not installed for this python3; pip install torch")
if not torch.cuda.is_available():
    peer.skip("PyTorch finds no GPU")
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.use_deterministic_algorithms(True, warn_only=True)
kept = {}


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def dense(request, gradient):
    """(samples, heads, length, width) with one backend."""
    lengths = request["lengths"]
    if len(set(lengths)) > 1:
        raise RuntimeError("segments of different lengths")
    backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    shape = (len(lengths), lengths[0], request["width"])
    q = random(shape[0], request["heads"], *shape[1:]).requires_grad_(gradient)
    k, v = (random(shape[0], request["kv_heads"], *shape[1:]).requires_grad_(gradient)
            for _ in range(2))

    def work():
        with sdpa_kernel(backend[request["way"]]):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return work, (q, k, v)


def packed(request, gradient):
    """(tokens, heads, width) and the borders of segments."""
    lengths = request["lengths"]
    borders = torch.zeros(len(lengths) + 1, dtype=torch.int32, device="cuda")
    borders[1:] = torch.tensor(lengths, device="cuda").cumsum(0)
    tokens, longest, width = sum(lengths), max(lengths), request["width"]
    q = random(tokens, request["heads"], width).requires_grad_(gradient)
    k, v = (random(tokens, request["kv_heads"], width).requires_grad_(gradient) for _ in range(2))
    flash = torch.ops.aten._flash_attention_forward
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        varlen_attn = None

    def work():
        if varlen_attn is None:
            return flash(q, k, v, borders, borders, longest, longest, 0.0, True, False)[0]
        try:
            return varlen_attn(q, k, v, borders, borders, longest, longest, window_size=(-1, 0))
        except TypeError:
            return varlen_attn(q, k, v, borders, borders, longest, longest, True)
    return work, (q, k, v)


def make(request):
    """A function that does everything that is measured."""
    gradient = request["pass"] == "both"
    work, inputs = (packed if request["way"] == "varlen" else dense)(request, gradient)
    if not gradient:
        def forward():
            with torch.no_grad():
                return work()
        return forward
    upstream = torch.randn_like(work())
    return lambda: torch.autograd.grad(work(), inputs, upstream)


def answer(request):
    key = repr(sorted(request.items()))
    try:
        if key not in kept:
            if len(kept) > 2:
                kept.clear()
            kept[key] = make(request)
        work = kept[key]
        work()
        start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(request["repeats"]):
            work()
        stop.record()
        stop.synchronize()
    except (RuntimeError, TypeError) as error:
        kept.clear()
        return {"skip": str(error).splitlines()[0]}
    seconds = start.elapsed_time(stop) / 1e3 / request["repeats"]
    return {"seconds": seconds, "cpu": seconds}


peer.serve(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}", answer)

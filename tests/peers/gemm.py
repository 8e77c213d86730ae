# gemm.py - the peer of `./tl bench gemm`: the same products by PyTorch, that is by what cuBLASLt
# chooses freely, on the same GPU.
#
# Request {"op": .., "rows": M, "width": N, "depth": K, "repeats": n}: milliseconds of one product,
# out of n that are replayed as one graph. Parts of a linear are one matrix of all their features.
#
#   linear               y = x w^T          x (M, K), w (N, K), bf16
#   linear_grad_input    dx = dy w          dy (M, N), bf16
#   linear_grad_weight   dw = dy^T x        bf16, or f32 = dw + dy^T x where "resume" is set
import peer

try:
    import torch
except ImportError:
    peer.skip("PyTorch is not installed for this python3; pip install torch")
if not torch.cuda.is_available():
    peer.skip("PyTorch finds no GPU")

torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
kept = {}


def random(rows, columns, spread):
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * spread


def make(request):
    """A function that does the product once, and what it needs."""
    m, n, k = request["rows"], request["width"], request["depth"]
    w, x = random(n, k, 0.02), random(m, k, 1.0)
    if request["op"] == "linear":
        return lambda: torch.matmul(x, w.t())
    dy = random(m, n, 1.0)
    if request["op"] == "linear_grad_input":
        return lambda: torch.matmul(dy, w)
    if not request.get("resume"):
        return lambda: torch.matmul(dy.t(), x)
    dw = torch.zeros(n, k, device="cuda")
    return lambda: torch.addmm(dw, dy.t(), x, out_dtype=torch.float32, out=dw)


def capture(request):
    work = make(request)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(request["repeats"]):
            work()
    return graph


def answer(request):
    key = tuple(sorted(request.items()))
    if key not in kept:
        kept.clear()
        try:
            kept[key] = capture(request)
        except (RuntimeError, TypeError) as error:
            return {"skip": str(error).splitlines()[0]}
    graph, start, stop = kept[key], torch.cuda.Event(True), torch.cuda.Event(True)
    graph.replay()
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    seconds = start.elapsed_time(stop) / 1e3 / request["repeats"]
    return {"seconds": seconds, "cpu": seconds}


peer.serve(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}", answer)

# moe.py - the peer of `./tl bench moe`: PyTorch's operators for mixtures of experts, same GPU.
#
# Request {"op": .., "repeats": n, ..}: seconds of one run out of n that follow each other.
#
#   "grouped_linear", "grouped_linear_grad_input",   torch._grouped_mm of "counts" rows of experts,
#   "grouped_linear_grad_weight"                     "depth" to "width", back, and rows by rows
#   "singles"    one matmul for each expert, queued one after the other
#   "route"      softmax, top "slots" of "experts", renormalized
#   "rows"       index_select of "slots" rows a token, then their weighted sum: the ways "permute",
#                "combine"; "copy": a plain copy of as many bytes as permute moves
import peer

try:
    import torch
except ImportError:
    peer.skip("PyTorch is not installed for this python3; pip install torch")
if not torch.cuda.is_available():
    peer.skip("PyTorch finds no GPU")

kept = {}


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def weights(experts, *shape):
    """One stack for all requests of a size: it may fill a tenth of the GPU."""
    key = ("weights", experts) + shape
    if key not in kept:
        kept.clear()
        kept[key] = random(experts, *shape) * 0.02
    return kept[key]


def grouped(request):
    counts, depth, width = request["counts"], request["depth"], request["width"]
    offsets = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    rows, op = sum(counts), request["op"]
    if op == "grouped_linear":
        x, w = random(rows, depth), weights(len(counts), width, depth).transpose(-2, -1)
        return lambda: torch._grouped_mm(x, w, offs=offsets)
    if op == "grouped_linear_grad_input":
        dy, w = random(rows, width), weights(len(counts), width, depth)
        return lambda: torch._grouped_mm(dy, w, offs=offsets)
    dy, x = random(rows, width), random(rows, depth)
    return lambda: torch._grouped_mm(dy.transpose(-2, -1), x, offs=offsets)


def singles(request):
    counts, depth, width = request["counts"], request["depth"], request["width"]
    x, w = random(sum(counts), depth), weights(len(counts), width, depth)
    parts = [(piece, w[i].t()) for i, piece in enumerate(x.split(counts)) if counts[i] > 0]

    def work():
        for piece, weight in parts:
            piece @ weight
    return work


def route(request):
    z = torch.randn(request["rows"], request["experts"], device="cuda")

    def work():
        scores = torch.softmax(z, dim=-1)
        weight, expert = torch.topk(scores, request["slots"], dim=-1)
        return weight / weight.sum(-1, keepdim=True), expert
    return work


def rows(request):
    tokens, slots, width = request["tokens"], request["slots"], request["width"]
    order = torch.randperm(tokens * slots, device="cuda")
    token = order // slots
    if request["way"] == "copy":
        source, target = random(tokens * slots, width), random(tokens * slots, width)
        return lambda: target.copy_(source)
    if request["way"] == "permute":
        x = random(tokens, width)
        return lambda: x.index_select(0, token)
    y, weight = random(tokens * slots, width), torch.rand(tokens, slots, 1, device="cuda")
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device="cuda")
    scale = weight.to(torch.bfloat16)
    return lambda: (y.index_select(0, place).view(tokens, slots, width) * scale).sum(1)


def make(request):
    if request["op"] == "singles":
        return singles(request)
    if request["op"] == "route":
        return route(request)
    return rows(request) if request["op"] == "rows" else grouped(request)


def answer(request):
    key = repr(sorted(request.items()))
    try:
        if key not in kept:
            for old in [k for k in kept if isinstance(k, str)]:
                del kept[old]
            kept[key] = make(request)
        work = kept[key]
        with torch.no_grad():
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

# gpu_decode.py - the peer of `tests/gpu/decode.lua peers`: greedy decoding with PyTorch on a GPU.
#
# Written as one decodes fast with PyTorch: q k v and gate up joined, a dense cache of fixed size,
# k and v in one tensor, residuals added by the products, the whole step with choice and
# log-probability in one CUDA graph. Less is asked of it than of Tidelock: no order of sums, no
# pages, all requests at one position, the same one in each replay, so attention needs no mask;
# nothing is read by the host, and there is no scheduler.
#
# Sizes come as one JSON argument, which `decode.lua` makes:
#   {"vocab": 32000, "dim": 2048, "layers": 22, "heads": 32, "kv_heads": 4, "hidden": 5632,
#    "positions": 272, "device": "cuda"}
# Request {"rows": 8, "length": 1, "way": "eager"}: a step of 8 requests with that many new tokens
# each; with a length above 1 these are prompts. Ways:
#   eager      operators as they are
#   compiled   torch.compile of a layer and of the head: products by cuBLAS
#   flex       the same with flex_attention
#   tuned      mode="max-autotune-no-cudagraphs", which takes a minute a step to make
# The answer has the median of 100 replays, the fastest and the slowest one, and how far logits are
# from those of a whole prompt.
import json
import signal
import statistics
import sys
import time

import peer

try:
    import torch
    from torch.nn import functional
except (ImportError, OSError) as problem:
    peer.skip(f"PyTorch does not load for this python3 ({problem}); pip install torch")
size = json.loads(sys.argv[1])
device = size["device"]
on_gpu = device == "cuda"
if on_gpu and not torch.cuda.is_available():
    peer.skip("PyTorch finds no GPU")

dim, heads, kv, layers = size["dim"], size["heads"], size["kv_heads"], size["layers"]
width, positions = size["dim"] // size["heads"], size["positions"]
turned = heads + 2 * kv  # heads that rope passes over; those of v are turned by nothing
seconds_to_compile = size.get("seconds_to_compile", 180)
torch.manual_seed(0)
torch.set_grad_enabled(False)
torch._dynamo.config.recompile_limit = 64


def random(*shape):
    return (torch.randn(shape, device=device) * 0.02).bfloat16()


def gain():
    return torch.ones(dim, device=device, dtype=torch.bfloat16)


embed, head, last_gain = random(size["vocab"], dim), random(size["vocab"], dim), gain()
weights = [(gain(), random(turned * width, dim), random(dim, dim),
            gain(), random(2 * size["hidden"], dim), random(dim, size["hidden"]))
           for _ in range(layers)]


def rope_tables():
    """Cosine and signed sine of (position, head, channel): x cos + (x, halves swapped) sin."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None, None] * rates
    angles = angles.expand(-1, turned, -1).clone()
    angles[:, heads + kv:] = 0
    sine = torch.sin(angles)
    return (torch.cat((torch.cos(angles),) * 2, -1).bfloat16(),
            torch.cat((-sine, sine), -1).bfloat16())


cosines, sines = rope_tables()


def attend(q, cache, count, how):
    """(rows, heads, count, width) over a cache of (rows, 2 kv, .., width)."""
    rows, k, v = q.shape[0], cache[:, :kv], cache[:, kv:]
    if how == "flex":
        return flex(q, k, v, enable_gqa=True)
    if count > 1:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    if how.endswith("heads"):
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    # Heads that share keys as that many queries, so that keys are read once.
    o = functional.scaled_dot_product_attention(q.reshape(rows, kv, heads // kv, width), k, v)
    return o.reshape(rows, heads, 1, width)


def layer(x, cache, place, cosine, sine, w, count, how):
    """One layer for x of (rows x count, dim); writes its keys and values to the cache."""
    gain1, qkv, out, gain2, gate_up, down = w
    y = functional.linear(functional.rms_norm(x, (dim,), gain1, 1e-5), qkv)
    y = y.view(-1, count, turned, width)
    swapped = y.view(-1, count, turned, 2, width // 2).flip(3).view_as(y)
    y = torch.addcmul(y * cosine, swapped, sine).transpose(1, 2)
    cache.index_copy_(2, place, y[:, heads:])
    near = cache if count == 1 else cache[:, :, :count]
    o = attend(y[:, :heads], near, count, how).transpose(1, 2).reshape(-1, dim)
    x = torch.addmm(x, o, out.t())
    gate, up = functional.linear(functional.rms_norm(x, (dim,), gain2, 1e-5), gate_up).chunk(2, -1)
    return torch.addmm(x, functional.silu(gate) * up, down.t())


def choose(x):
    """Logits of rows, each one's best token and its log-probability."""
    logits = functional.linear(functional.rms_norm(x, (dim,), last_gain, 1e-5), head).float()
    best = logits.argmax(-1)
    return logits, best, torch.log_softmax(logits, -1).gather(-1, best[:, None])


def use(how):
    """Leaves on the backend of attention that `how` begins with, or for "any" all of them."""
    backend = how.split()[0]
    for name in ("cudnn", "flash", "mem_efficient", "math"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(backend in (name, "any"))


def timed(work, repeats):
    """Seconds of each of so many calls that follow each other."""
    if not on_gpu:
        seconds = []
        for _ in range(min(repeats, 3)):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return seconds
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    marks[-1].synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]


def captured(work):
    """work() as one CUDA graph, after it ran three times."""
    if not on_gpu:
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Step:
    """A step of `rows` requests with `count` new tokens each. Decoding is at the last position."""

    def __init__(self, rows, count):
        self.rows, self.count = rows, count
        first = positions - 1 if count == 1 else 0
        self.ids = torch.randint(size["vocab"], (rows, count), device=device)
        self.place = torch.arange(first, first + count, device=device)
        self.caches = [random(rows, 2 * kv, positions, width) for _ in range(layers)]
        self.layer, self.choose, self.how = layer, choose, "any groups"

    def run(self):
        cosine, sine = cosines.index_select(0, self.place), sines.index_select(0, self.place)
        x = functional.embedding(self.ids.view(-1), embed)
        for w, cache in zip(weights, self.caches):
            x = self.layer(x, cache, self.place, cosine, sine, w, self.count, self.how)
        if self.count > 1:
            x = x.view(self.rows, self.count, dim)[:, -1]
        self.logits, best, self.chance = self.choose(x)
        if self.count == 1:
            self.ids.copy_(best[:, None])

    def distance(self):
        """Largest difference of the first request's logits from those of its whole prompt."""
        whole = Step(1, positions if self.count == 1 else self.count)
        use("math")
        whole.run()
        use(self.how)
        if self.count == 1:
            for mine, its in zip(self.caches, whole.caches):
                mine[:1, :, :-1] = its[:, :, :-1]
        self.ids[:1] = whole.ids[:, -self.count:]
        self.run()
        off = (self.logits[0] - whole.logits[0]).abs().max() / whole.logits[0].abs().max()
        if not off < 0.05:
            raise RuntimeError(f"logits are {off:.3f} of the largest one from those of a prompt")
        return float(off)

    def pick_attention(self):
        """The fastest of the backends, keys read for each head or for each group of heads."""
        q = random(self.rows, self.count, turned * width)
        q = q.view(-1, self.count, turned, width).transpose(1, 2)[:, :heads]
        best = None
        for how in [f"{name} {form}" for name in ("flash", "cudnn", "mem_efficient", "math")
                    for form in (("groups", "heads") if self.count == 1 else ("heads",))]:
            use(how)
            near = self.caches if self.count == 1 else [c[:, :, :self.count] for c in self.caches]
            try:
                run = captured(lambda: [attend(q, c, self.count, how) for c in near])
                seconds = statistics.median(timed(run, 20)[1:])
            except RuntimeError as problem:
                log(f"{self.rows} x {self.count}: {how}: {str(problem).splitlines()[0][:90]}")
                continue
            log(f"{self.rows} x {self.count}: {how}: {seconds / layers * 1e6:.1f} us a layer")
            if best is None or seconds < best[0]:
                best = seconds, how
        use(best[1])
        return best[1]


def log(text):
    print(text, file=sys.stderr, flush=True)


def too_long(*_):
    raise TimeoutError(f"not compiled after {seconds_to_compile} s")


attentions, kept = {}, {}


def make(rows, count, way):
    step = Step(rows, count)
    if (rows, count) not in attentions:
        attentions[rows, count] = step.pick_attention() if on_gpu else "any groups"
    step.how = attentions[rows, count]
    if way == "flex" and count > 1:
        raise RuntimeError("only for decoding")
    if way == "flex":
        step.how = "flex"
    use(step.how)
    if way != "eager":
        mode = "max-autotune-no-cudagraphs" if way == "tuned" else None
        step.layer = torch.compile(layer, dynamic=False, fullgraph=True, mode=mode)
        step.choose = torch.compile(choose, dynamic=False, fullgraph=True, mode=mode)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds_to_compile)
    try:
        begin = time.perf_counter()
        off = step.distance()
        log(f"{rows} x {count} {way}: made in {time.perf_counter() - begin:.1f} s")
    finally:
        signal.alarm(0)
    return step, captured(step.run), off


def answer(request):
    key = request["rows"], request["length"], request["way"]
    try:
        if key not in kept:
            kept[key] = make(*key)
        if isinstance(kept[key], str):
            return {"skip": kept[key]}
        step, run, off = kept[key]
        timed(run, 20)
        seconds = timed(run, 100)
        return {"seconds": statistics.median(seconds), "low": min(seconds), "high": max(seconds),
                "off": off, "attention": step.how}
    except Exception as problem:
        kept[key] = f"{type(problem).__name__}: {str(problem).strip().splitlines()[0][:150]}"
        log(f"{key}: {kept[key]}")
        return {"skip": kept[key]}


try:
    from torch.nn.attention.flex_attention import flex_attention as flex
except ImportError:
    flex = None
peer.serve(f"PyTorch {torch.__version__.split('+')[0]}, "
           f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}", answer)

# matmul.py - the peer of `./tl bench matmul`: y = x @ w.T in f32 with numpy's OpenBLAS.
#
# Request {"size": n}: one product of n x n matrices. The number of threads is that of
# OPENBLAS_NUM_THREADS, which bench sets; the kernel is the one OpenBLAS chooses for this processor.
import ctypes
import re

import peer

try:
    import numpy
except ImportError:
    peer.skip("numpy is not installed for this python3; pip install numpy")


def blas_config():
    """What OpenBLAS says of itself, "OpenBLAS 0.3.29 SkylakeX"; or what numpy was built with."""
    with open("/proc/self/maps") as maps:
        found = re.findall(r"\S*/\S*openblas\S*\.so\S*", maps.read())
    names = [p + "openblas_get_config" + s for p in ("", "scipy_") for s in ("64_", "", "_64_")]
    for path in sorted(set(found)):
        library = ctypes.CDLL(path)
        for name in names:
            if hasattr(library, name):
                config = getattr(library, name)
                config.restype = ctypes.c_char_p
                words = config().decode().split()
                return f"OpenBLAS {words[1]} {words[-2]}"
    return "a BLAS that is not OpenBLAS"


factors = {}


def answer(request):
    size = request["size"]
    if size not in factors:
        random = numpy.random.default_rng(size)
        x, w = random.random((2, size, size), dtype=numpy.float32)
        y = numpy.empty((size, size), dtype=numpy.float32)
        factors.clear()
        factors[size] = x, w, y
        numpy.matmul(x, w.T, out=y)
    x, w, y = factors[size]
    return peer.measure(lambda: numpy.matmul(x, w.T, out=y))


peer.serve(f"numpy {numpy.__version__}, {blas_config()}", answer)

"""Products as tensor cores compute them, on a CPU: operands of few digits, sums in float32, one rounding at the end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
WITH_ADDEND = (aten.addmm.out, aten.addmm.default, aten.baddbmm.out, aten.baddbmm.default)
PRODUCTS = (*WITH_ADDEND, aten.mm.out, aten.mm.default, aten.bmm.out, aten.bmm.default)


def to_tf32(A: Tensor) -> Tensor:
    """Round float32 to the nearest number with 10 bits after the leading one."""
    mantissa, exponent = torch.frexp(A)
    return torch.ldexp(torch.round(mantissa * 2**11), exponent - 11)


class TensorCores(TorchDispatchMode):
    """Compute every product of half precision, and of float32 if ``tf32``, as a tensor core does; count them."""

    def __init__(self, *, tf32: bool = False) -> None:
        super().__init__()
        self.tf32, self.count = tf32, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        matrices = args[1:3] if function in WITH_ADDEND else args[:2]
        if function not in PRODUCTS or not (matrices[0].dtype in HALF or (self.tf32 and _is_float(matrices[0]))):
            return function(*args, **kwargs)
        self.count += 1
        A, B = (to_tf32(A) if _is_float(A) else A.float() for A in matrices)
        C = kwargs.get("alpha", 1.0) * torch.matmul(A, B)
        if function in WITH_ADDEND and kwargs.get("beta", 1.0) != 0:
            C = C + kwargs.get("beta", 1.0) * args[0].float()
        C = C.to(matrices[0].dtype)
        return kwargs["out"].copy_(C) if "out" in kwargs else C


def _is_float(A: Tensor) -> bool:
    return A.dtype == torch.float32

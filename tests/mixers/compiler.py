"""Compiles Triton kernels for a GPU that is not there, as the package's own host code launches them.

Triton's interpreter runs Python and never sees a type: only the compiler can refuse a kernel. Inside `compiling()`
every launch of a kernel compiles it for sm_90, down to machine code, from the arguments it was given, and runs nothing.
Tensors are on the meta device: no arithmetic, any size, any dtype.
"""

import contextlib

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from repflow.metrics import fused
from repflow.mixers.triton import launch as triton_launch

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 227 << 10
"""Bytes of shared memory that a program may have there."""


@contextlib.contextmanager
def compiling():
    """Yields what was compiled: kernel name → set of the dtypes its pointers had, in their order."""
    binaries = {}
    usual = JITFunction.run, fused.INTERPRETED, triton_launch.INTERPRETED, driver._active

    def compile_only(self, *args, grid, warmup, **kwargs):
        pointers = [arg for arg in args if hasattr(arg, "data_ptr")]
        kernel = usual[0](self, *args, grid=grid, warmup=True, **kwargs)
        assert kernel.asm["cubin"], self.__name__
        assert kernel.metadata.shared <= SHARED, f"{self.__name__} wants {kernel.metadata.shared} bytes"
        names = tuple(str(pointer.dtype).removeprefix("torch.") for pointer in pointers)
        binaries.setdefault((self.__module__, self.__name__), set()).add(names)
        return kernel

    class Absent:
        """A driver of the target without a device."""

        get_current_target = staticmethod(lambda: TARGET)
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    try:
        driver.set_active(Absent())
        JITFunction.run = compile_only
        fused.INTERPRETED = triton_launch.INTERPRETED = True
        yield binaries
    finally:
        JITFunction.run, fused.INTERPRETED, triton_launch.INTERPRETED, driver._active = usual


def launched_kernels(*modules):
    """(module, name) of the kernels these modules define, as opposed to the functions that kernels call."""
    return {
        (module.__name__, name)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and value.__module__ == module.__name__ and name.endswith("_kernel")
    }

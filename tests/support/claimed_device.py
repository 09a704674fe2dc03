"""Tensors on the CPU that claim to be on a GPU: device faults and host syncs are found without one.

Values are real. Recorded are operations on tensors of different places, which CUDA would refuse, and those
for which a GPU's queue would have to drain (``item``, a boolean index ...), each with the line of ours that
asked for it; what C++ does by itself, backward passes included, is not seen.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GPU, CPU = "cuda", "cpu"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FACTORIES = _names(
    """
    arange as_tensor asarray empty empty_strided eye from_numpy full linspace ones rand
    randint randn randperm scalar_tensor tensor tril_indices zeros
    """
)
SYNCS = _names(
    """
    __bool__ __float__ __index__ __int__ allclose argwhere bincount equal is_nonzero item
    masked_select nonzero tolist unique
    """
)
ANY_PLACES = _names(
    """
    __deepcopy__ __format__ __hash__ __reduce_ex__ __repr__ __set__ backward copy_ data_ptr
    dim element_size is_complex is_contiguous is_floating_point nelement numel
    register_hook register_post_accumulate_grad_hook requires_grad_ size storage_offset
    stride untyped_storage __len__ is_pinned _has_compatible_shallow_copy_type grad_fn
    ndimension is_shared type split_with_sizes __torch_dispatch__
    """
)
"""what may be asked of tensors wherever they are"""


def place(tensor: Tensor) -> str:
    return str(getattr(tensor, "_claimed_place", CPU))


def claim(value: Any, where: str) -> Any:
    """Lets all tensors in a value claim a place."""
    for tensor in _tensors(value):
        tensor._claimed_place = where  # type: ignore[attr-defined]
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _asker() -> str:
    """The line of ours that is being executed, else the innermost of a library."""
    frames = traceback.extract_stack()
    ours = [f for f in frames if "/paw_train/" in f.filename or "/paw_gym/" in f.filename]
    frame = ours[-1] if ours else frames[-4]
    return f"{frame.filename.rpartition('/paw_')[2]}:{frame.lineno} {frame.line}"


class ClaimedGpu(TorchFunctionMode):
    """Within it, ``cuda`` can be asked for, and what would fail or wait there is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self.on_gpu = 0
        """operations on tensors that claim to be on the GPU"""

    def __enter__(self) -> ClaimedGpu:
        self._parameter = torch.nn.Parameter.__new__
        self._copied = torch.nn.Parameter.__deepcopy__
        torch.nn.Parameter.__new__ = _following(self._parameter)  # type: ignore[method-assign, assignment]
        torch.nn.Parameter.__deepcopy__ = _following(self._copied)  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.nn.Parameter.__new__ = self._parameter  # type: ignore[method-assign]
        torch.nn.Parameter.__deepcopy__ = self._copied  # type: ignore[method-assign]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._property(func, args, kwargs)
        if name in ("to", "cpu", "cuda") and args and isinstance(args[0], Tensor):
            return self._moved(name, args, kwargs)
        if name == "__set__" or name in ANY_PLACES:
            return self._anywhere(func, name, args, kwargs)
        if name in ("numpy", "__array__") and place(args[0]) == GPU:
            self._fault("numpy() of a tensor on the GPU")
        return self._computed(func, name, args, kwargs)

    def _property(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func.__self__, "__name__", "")
        # a tensor without a claim is where it is: one on ``meta`` has to say so, or transformers
        # leaves what it should have computed for it (the rotary frequencies) uninitialised
        if name == "device" and place(args[0]) == GPU:
            return torch.device(GPU, 0)
        if name in ("is_cuda", "is_cpu"):
            return place(args[0]) == (GPU if name == "is_cuda" else CPU)
        result = func(*args, **kwargs)
        return result if result is args[0] else claim(result, place(args[0]))

    def _anywhere(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if name == "__set__" and getattr(func.__self__, "__name__", "") == "data":
            claim(args[0], place(args[1]))
        if name == "__deepcopy__":
            claim(result, place(args[0]))
        return result

    def _moved(self, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        tensor, wanted, others = args[0], name if name != "to" else None, []
        for argument in (*args[1:], *filter(None, (kwargs.pop("device", None),))):
            if isinstance(argument, Tensor):
                wanted = place(argument)
                others.append(argument.dtype)
            elif isinstance(argument, str | torch.device):
                wanted = torch.device(argument).type
            elif isinstance(argument, torch.dtype):
                others.append(argument)
        wanted = wanted or place(tensor)
        if wanted not in (GPU, CPU):
            return tensor.to(wanted, *others, **kwargs)
        if name != "to":
            kwargs = {}
        result: Tensor = tensor.to(*others, **kwargs) if others or kwargs else tensor
        if wanted == place(tensor):
            return result if result is tensor else claim(result, wanted)  # type: ignore[no-any-return]
        if wanted == CPU:
            self._sync("copied to the CPU")
        moved: Tensor = claim(result.clone() if result is tensor else result, wanted)
        return moved

    def _computed(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        given = [*_tensors(args), *_tensors(kwargs)]
        wanted = None
        if kwargs.get("device") is not None:
            wanted = torch.device(kwargs["device"]).type
            if wanted not in (GPU, CPU):  # meta: a model before its weights are read
                return func(*args, **kwargs)
            kwargs["device"] = CPU
        if name in FACTORIES:
            return self._made(func, name, args, kwargs, wanted, given)
        where = self._checked(name, args, given)
        if where == GPU:
            self.on_gpu += 1
            if name in SYNCS:
                self._sync(name)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and any(result is tensor for tensor in given):
            return result
        return claim(result, wanted or where)

    def _made(
        self, func: Any, name: str, args: Any, kwargs: Any, wanted: str | None, given: list[Tensor]
    ) -> Any:
        if wanted is None and name in ("as_tensor", "tensor") and given:
            wanted = place(given[0])
        generator = kwargs.get("generator")
        if generator is not None and wanted == GPU:
            self._fault(f"{name} on the GPU with a generator of the CPU")
        result = func(*args, **kwargs)
        if given and result is given[0]:
            result = result.clone() if wanted != place(result) else result
        return claim(result, wanted or CPU)

    def _checked(self, name: str, args: Any, given: list[Tensor]) -> str:
        """The place of the operation; a fault is recorded where its tensors have several."""
        if name in ("__getitem__", "__setitem__"):
            return self._indexed(name, args)
        # numbers in tensors of no dimension may come from anywhere
        wide = [tensor for tensor in given if tensor.dim() > 0]
        if name in ("cat", "stack", "gather", "index_select", "index_add_", "scatter_add_"):
            wide = given
        places = {place(tensor) for tensor in wide or given}
        if len(places) > 1:
            shapes = [(tuple(tensor.shape), place(tensor)) for tensor in wide][:4]
            self._fault(f"{name} of tensors in different places: {shapes}")
        return GPU if GPU in places else CPU

    def _indexed(self, name: str, args: Any) -> str:
        tensor, where = args[0], place(args[0])
        for index in _tensors([args[1]]):
            if where == CPU and place(index) == GPU:
                self._fault("a tensor on the CPU indexed by one on the GPU")
            mask = index.dtype == torch.bool and index.dim() > 0
            if mask and where == GPU and name == "__getitem__":
                self._sync("boolean index")
        return place(tensor)

    def _fault(self, what: str) -> None:
        self.faults[f"{what} ({_asker()})"] += 1

    def _sync(self, what: str) -> None:
        self.syncs[f"{what} ({_asker()})"] += 1


def _following(make: Callable[..., Any]) -> Any:
    """A constructor or copier of parameters whose result is where its source is."""

    def made(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        source = next(_tensors([*args, *kwargs.values()]), None)
        return result if source is None else claim(result, place(source))

    return made

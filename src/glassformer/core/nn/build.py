"""A config's type chooses its module: the one registry of the house."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from .. import registry
from ..config.layers import Shapes, Unmultiplied, describes
from ..config.mask import MaskRule, Rule
from ..config.serial import members
from ..errors import UserError, need

M = TypeVar("M", bound=Callable[..., Any])

_MAKERS: dict[type, Callable[..., Any]] = {}


def builds(kind: type) -> Callable[[M], M]:
    """Class decorator: this module (or function) is what a config of type ``kind`` builds."""

    def register(maker: M) -> M:
        if kind in _MAKERS:
            raise TypeError(f"{kind.__name__} already builds {_MAKERS[kind].__name__}")
        _MAKERS[kind] = maker
        # a rule from a file of its own
        if kind in members(MaskRule).values() and not hasattr(kind, "allows"):
            name = kind.__name__
            need(issubclass(kind, Rule), f"{name} is a mask rule; write class {name}(config.Rule).")
            kind.allows = _for_any_array(maker)  # type: ignore[attr-defined]
        return maker

    return register


def _for_any_array(maker: Callable[..., Any]) -> Callable[..., Any]:
    """A function (config, causal) -> rule over tensors, as one whose rule takes numpy's too."""
    import torch

    def allows(cfg: Any, causal: bool) -> Any:
        rule = maker(cfg, causal)

        def may(q: Any, k: Any) -> Any:
            if isinstance(q, torch.Tensor):
                return rule(q, k)
            return rule(torch.from_numpy(q), torch.from_numpy(k)).numpy()

        return None if rule is None else may

    return allows


def uncompiled(method: M) -> M:
    """A forward pass that ``compiled`` leaves; torch's decorator would import its compiler."""
    method.uncompiled = True  # type: ignore[attr-defined]
    return method


def compiled(model: Any) -> Any:
    """``model`` compiled for one shape at a time, but for passes marked as ``uncompiled``."""
    import torch

    for module in model.modules():
        if hasattr(type(module).forward, "uncompiled"):
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
    return torch.compile(model, dynamic=False)


def build(config: Any, *args: Any) -> Any:
    """The module that ``config`` describes; ``args`` are what only its place can know."""
    name, maker = type(config).__name__, _MAKERS.get(type(config)) or makers().get(type(config))
    if maker is None:
        raise UserError(
            f"{name} has no module; write @builds({name}) above the class of its module."
        )
    return maker(config, *args)


def kind_of(module: Any) -> type | None:
    """The config type that builds a module of this class or of a base of it; None without one."""
    kinds = {maker: kind for kind, maker in _MAKERS.items()}
    return next((kinds[base] for base in type(module).__mro__ if base in kinds), None)


def makers() -> dict[type, Callable[..., Any]]:
    """Modules by config type, those of the registry among them."""
    registry.load("nn")
    return _MAKERS


# ---------------------------------------------- what a module says of its own parameters
#
#     writes = ("down.weight",)   matrices that write to the residual stream
#     biases = ("up_bias",)       parameters of two sides or more that are biases all the same
#                                 (a stack of experts')
#     tables = ("weight",)        parameters that tokens are looked up in, not multiplied with
#     products = ("weight",)      matrices (.., N, C) that may be held in few bits
#     exact = ("router",)         parts of it whose matrices are not
#     columns = ("up",)           layers whose outputs may lie on several processes, and
#     rows = ("down",)            those that take these as inputs (scale/tensor.py); without them
#                                 a part is whole on each
#     init_std_divisor = {"lag.0.weight": 2}
#                                 tables of an embedding that start with a standard deviation
#                                 divided by so much
#     def reset(std, generator)   fills in what no rule of ``init`` draws; std is the embeddings'


def matches(path: str, patterns: Iterable[str]) -> bool:
    """True where the path of a parameter or module fits one of the fnmatch patterns."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def declared(model: Any, kind: str) -> set[str]:
    """The parameters that the modules of ``model`` name under ``kind``, by their paths."""
    modules = ((path, getattr(module, kind, ())) for path, module in model.named_modules())
    return {f"{path}.{name}" if path else name for path, names in modules for name in names}


def vectors(model: Any) -> set[str]:
    """The paths of gains and biases: what is not drawn at random, and not decayed."""
    return {path for path, weight in model.named_parameters() if weight.ndim < 2} | declared(
        model, "biases"
    )


@describes
def described(config: Any, *args: Any) -> Shapes:
    """The parameters of a config's module, built without memory."""
    import torch

    with torch.device("meta"):
        module = build(config, *args)
    looked_up = {
        f"{path}.weight"
        for path, submodule in module.named_modules()
        if isinstance(submodule, torch.nn.Embedding)
    }
    apart = looked_up | declared(module, "tables") | declared(module, "biases")
    shapes = {path: tuple(weight.shape) for path, weight in module.named_parameters()}
    return {path: Unmultiplied(shape) if path in apart else shape for path, shape in shapes.items()}

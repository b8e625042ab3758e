"""Methods: which codec each saved tensor goes through, and the options around it.

A method owns its random numbers (a seed and a counter, checkpointed through `state_dict`), so that
compression never touches the global generator and two methods see the same data and dropout.

A method that learns from the run overrides `begin`, told before each forward that builds a graph,
and `stored`, told of each tensor right after it was packed; from the node that it gets there it may
register hooks for the backward pass. Whatever it learns belongs in `state_dict`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from division.codec import Codec, Packed, check_choice, check_range
from division.codecs import Dual, Identity
from division.overrides import check_patterns, most_specific
from division.registry import Registry
from division.site import Site


@dataclass
class Method:
    """Base of all methods: every tensor stays as it is.

    Attributes:
        masks: store ReLU and dropout masks as bits, pooling indices as bytes, pooling inputs as
            shapes. Exact; off only to be faithful to a paper that lacks them.
        share: store a tensor that several layers save only once.
        recompute: do not store what a cheap layer can compute again from its own stored input;
            "deep" also rebuilds residual sums, from two stored terms: smaller, and slower.
        seed: start of the method's own random numbers.
    """

    masks: bool = True
    share: bool = True
    recompute: bool | str = False
    seed: int = 0
    _drawn: int = field(default=0, init=False, repr=False)
    name: ClassVar[str] = "method"
    one_copy: ClassVar[bool] = False  # the first copy of a tensor serves readers of any codec

    def __post_init__(self) -> None:
        check_range("seed", self.seed, 0, 2**31 - 1)
        check_choice("recompute", self.recompute, (False, True, "deep"))

    def codec(self, site: Site) -> Codec | None:
        """Return the codec for a site's tensor, or None to leave it as it is."""
        return None

    def begin(self) -> None:
        """Get ready for a forward pass that builds a graph."""

    def stored(self, site: Site, node: Any, tensor: Tensor, packed: Packed, shared: bool) -> None:
        """Look at a tensor that was just packed for a node.

        `shared` tells that an earlier node's copy serves. Keep no reference to node or tensor: the
        graph and the original would stay alive.
        """

    def attach(self, model: nn.Module) -> None:
        """Get ready for a model; `compress` calls it once."""

    def detach(self, model: nn.Module) -> None:
        """Undo `attach`, and take off hooks that were registered since; `restore` calls it."""

    def next_seed(self) -> int:
        """Return a seed that no other tensor of this run has had."""
        self._drawn += 1
        return (self.seed << 32) | (self._drawn & 0xFFFFFFFF)

    def state_dict(self) -> dict[str, object]:
        """Return what has to be saved to continue a run bit for bit."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take up a saved state."""
        drawn = state["drawn"]
        check_range("drawn", drawn, 0, 2**63 - 1)
        self._drawn = int(drawn)  # type: ignore[call-overload]


@dataclass
class Vanilla(Method):
    """Stock PyTorch: nothing is captured."""

    masks: bool = False
    name: ClassVar[str] = "vanilla"


@dataclass
class IdentityMethod(Method):
    """Goes through the whole capture and stores exact copies: the check that capture is exact."""

    name: ClassVar[str] = "identity"

    def codec(self, site: Site) -> Codec:
        """Return the identity codec for every site."""
        return Identity()


@dataclass
class Division(Method):
    """DIVISION: the dual-precision codec at every site.

    Attributes:
        bits: bits a high-frequency code.
        block: edge of a low-frequency block.
        align: "area", or "reference" as released.
        keep: "both", or for ablations "low" or "high".
        rounding: "stochastic", or for ablations "nearest".
        fine_bits: bits a code, if more than `bits`, for what is small and matters much: data (the
            images of a batch) and vectors (the input of a classifier).
        overrides: other options for some modules, by patterns of their paths; None leaves them
            stock: {"blocks.*.attn": {"bits": 4}, "head": None}.
    """

    bits: int = 2
    block: int = 8
    align: str = "area"
    keep: str = "both"
    fine_bits: int = 8
    overrides: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    rounding: str = "stochastic"
    name: ClassVar[str] = "division"

    def __post_init__(self) -> None:
        super().__post_init__()
        usual: dict[str, Any] = {
            "bits": self.bits,
            "block": self.block,
            "align": self.align,
            "keep": self.keep,
            "rounding": self.rounding,
        }
        self._codec = Dual(**usual)
        check_range("fine_bits", self.fine_bits, 1, 8)
        self._fine = Dual(**{**usual, "bits": max(self.bits, self.fine_bits)})
        self._chosen: dict[str, Codec | None] = {}
        for pattern, options in self.overrides.items():
            unknown = [option for option in options or () if option not in usual]
            if unknown:
                raise ValueError(
                    f"overrides[{pattern!r}] has no option {unknown[0]!r}; its options: "
                    + ", ".join(usual)
                )
            self._chosen[pattern] = None if options is None else Dual(**{**usual, **options})

    def attach(self, model: nn.Module) -> None:
        """Check that every override names something in the model."""
        check_patterns(self.overrides, (path for path, _ in model.named_modules()))

    def codec(self, site: Site) -> Codec | None:
        """Return the dual-precision codec with the options of the site."""
        usual = self._codec if site.role == "map" else self._fine
        return most_specific(self._chosen, site.path, usual) if self._chosen else usual


_registry: Registry[Method] = Registry("method", "division.methods")
for _method in (Vanilla, IdentityMethod, Division):
    _registry.register(_method.name, _method)

names = _registry.names
register = _registry.register


def resolve(method: str | Method, **options: object) -> Method:
    """Return a Method: a name is looked up and built with its options, an object is taken as is."""
    if isinstance(method, Method):
        if options:
            raise ValueError(
                f"options go into the method object itself; got {method!r} and {sorted(options)}"
            )
        return method
    if not isinstance(method, str):
        raise TypeError(f"method must be a name or a Method; got {type(method).__name__}")
    return _registry.get(method, **options)

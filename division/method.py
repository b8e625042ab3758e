"""Methods: which codec each saved tensor goes through, and the options around it.

A method owns its random numbers (a seed and a counter, checkpointed through `state_dict`), so that
compression never touches the global generator and two methods see the same data and dropout.

A method that learns from the run overrides `begin`, told before each forward that builds a graph,
and `stored`, told of each tensor right after it was packed; from the node that it gets there it may
register hooks for the backward pass. Whatever it learns belongs in `state_dict`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from division.budget import Budget, budget_of
from division.choice import Choice
from division.codec import Codec, Packed, check_choice, check_range
from division.codecs import Dual, Identity
from division.overrides import check_patterns, most_specific
from division.registry import Registry
from division.site import Site

BITS = {"map": 2, "tokens": 4}  # by role; chosen by measured gradient error


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

    @property
    def learns(self) -> bool:
        """Tell whether the method learns from the gradients of a run."""
        return type(self).stored is not Method.stored

    @property
    def is_settled(self) -> bool:
        """Tell whether it is as it will be; until then it needs training steps."""
        return True

    def hurry(self) -> None:
        """Learn from the next step on, where it would let some pass first."""

    def remark(self, site: Site) -> str:
        """Return what the ledger has to say about a copy that a site stores."""
        return ""

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
        bits: bits a high-frequency code. None: 2, and 4 for tokens (what linear layers, layer norms
            and attention of a transformer save), whose gradients need more.
        block: edge of a low-frequency block.
        align: "area", or "reference" as released.
        keep: "both", or for ablations "low" or "high".
        rounding: "stochastic", or for ablations "nearest".
        fine_bits: bits a code, if more than `bits`, for what is small and matters much: data (the
            images of a batch) and vectors (the input of a classifier).
        overrides: other options for some modules, by patterns of their paths; None leaves them
            stock: {"blocks.*.attn": {"bits": 4}, "head": None}.
        budget: bytes that a batch may take, such as "1.5GiB", instead of `bits`: every site gets
            its own from 1 to 8, by what it does to the gradient per stored byte.
        ratio: the same, as how many times less than stock.
        calibration: batches from whose gradients the bits are chosen.
        warmup: training steps before that: what matters at the very start matters little later.
    """

    bits: int | None = None
    block: int = 8
    align: str = "area"
    keep: str = "both"
    fine_bits: int = 8
    overrides: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    rounding: str = "stochastic"
    budget: str | int | None = None
    ratio: float | None = None
    calibration: int = 2
    warmup: int = 50
    name: ClassVar[str] = "division"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("fine_bits", self.fine_bits, 1, 8)
        self._budget = budget_of(vars(self))
        bits = {role: usual if self.bits is None else self.bits for role, usual in BITS.items()}
        if self._budget is not None:
            bits = dict.fromkeys(bits, 1)  # the fewest that a budget may choose
        bits |= {role: max(bits["map"], self.fine_bits) for role in ("data", "vector")}
        shared: dict[str, Any] = {
            "block": self.block,
            "align": self.align,
            "keep": self.keep,
            "rounding": self.rounding,
        }
        self._usual = {role: Dual(width, **shared) for role, width in bits.items()}
        self._chosen: dict[str, dict[str, Dual] | None] = {}
        for pattern, options in self.overrides.items():
            unknown = [option for option in options or () if option not in ("bits", *shared)]
            if unknown:
                raise ValueError(
                    f"overrides[{pattern!r}] has no option {unknown[0]!r}; its options: "
                    + ", ".join(("bits", *shared))
                )
            self._chosen[pattern] = (
                None
                if options is None
                else {role: replace(codec, **options) for role, codec in self._usual.items()}
            )

    def attach(self, model: nn.Module) -> None:
        """Check that every override names something in the model."""
        check_patterns(self.overrides, (path for path, _ in model.named_modules()))

    def usual(self, site: Site) -> Codec | None:
        """Return the dual-precision codec with the options of the site."""
        codecs: dict[str, Dual] | None = self._usual
        if self._chosen:
            codecs = most_specific(self._chosen, site.path, codecs)
        return codecs[site.role] if codecs is not None else None

    def is_fixed(self, site: Site) -> bool:
        """Tell whether an override gives the bits of a site."""
        named = {pattern: "bits" in (given or {}) for pattern, given in self.overrides.items()}
        return most_specific(named, site.path, False)

    def codec(self, site: Site) -> Codec | None:
        """Return the codec of a site: as the options say, or with the bits of its budget."""
        usual = self.usual(site)
        if self._budget is None:
            return usual
        return self._budget.codec(site, usual, self.is_fixed(site))

    @property
    def spent(self) -> Budget | None:
        """Return what is known about the bits that a budget gives, if there is one."""
        return self._budget

    @property
    def choice(self) -> Choice | None:
        """Return the bits of every site under a budget, a table; None before the first batch."""
        return self._budget.choice if self._budget else None

    @property
    def learns(self) -> bool:
        """Tell whether there is a budget to spend."""
        return self._budget is not None

    @property
    def is_settled(self) -> bool:
        """Tell whether every site has its bits for good."""
        return self._budget is None or self._budget.is_settled

    def hurry(self) -> None:
        """Choose the bits from the next steps."""
        if self._budget is not None:
            self._budget.waited = max(self._budget.waited, self.warmup)

    def remark(self, site: Site) -> str:
        """Return the bits that a budget gave to a site."""
        codec = self.codec(site) if self._budget else None
        return f"{codec.bits} bits" if isinstance(codec, Dual) else ""

    def state_dict(self) -> dict[str, object]:
        """Return the bits that a budget gave, besides what every method saves."""
        state = super().state_dict()
        return state if self._budget is None else {**state, "budget": self._budget.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        saved = state.get("budget")
        if (saved is None) != (self._budget is None):
            of = "without a budget" if saved is None else f"with {saved['given']}"
            raise ValueError(f"the saved state is of a run {of}, and this method is {self!r}")
        if self._budget is not None and saved is not None:
            self._budget.load_state_dict(saved)
        super().load_state_dict(state)


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

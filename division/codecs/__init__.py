"""The codecs by name: `get`, `names`, `register`."""

from division.codec import Codec
from division.codecs.cast import Cast
from division.codecs.dual import Dual
from division.codecs.identity import Identity
from division.codecs.mask import Mask
from division.codecs.uniform import Uniform
from division.registry import Registry

_registry: Registry[Codec] = Registry("codec", "division.codecs")
for _codec in (Identity, Cast, Dual, Uniform, Mask):
    _registry.register(_codec.name, _codec)

get = _registry.get
names = _registry.names
register = _registry.register

__all__ = ["Cast", "Dual", "Identity", "Mask", "Uniform", "get", "names", "register"]
